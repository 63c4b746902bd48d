"""The only module that knows Grafana's JSON, by way of Grafana's own library."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import (
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from tools.dashboards.panels import Dashboard, Kind, Panel, Query, Row, Variable
from tools.dashboards.series import rebalancer

TAG: Final = "fracgpu"
CARD_DASHBOARD: Final = "fracgpu-card"
_SOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
# Wide enough for two scrapes a minute apart.
_ANNOTATION_WINDOW: Final = "2m"
_STEP: Final = "60s"

_AnyPanel = stat.Panel | timeseries.Panel | table.Panel | statushistory.Panel | statetimeline.Panel


def to_json(dashboard: Dashboard) -> str:
    """Return the dashboard as Grafana imports it."""
    built = (
        builders.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.description)
        .tags([TAG])
        .editable()
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_links())
        .with_variable(_datasource())
        .annotation(_moves())
    )
    for variable in dashboard.variables:
        built.with_variable(_variable(variable))
    for number, panel in _numbered(dashboard.rows):
        if isinstance(panel, Row):
            built.with_row(builders.Row(panel.title).id(number))
        else:
            built.with_panel(_panel(panel).id(number))
    return json.dumps(_shown(built.build()), indent=2, sort_keys=True) + "\n"


def _shown(dashboard: models.Dashboard) -> Any:
    """Return the JSON with links and annotations outside the menu that is the library's default."""
    found = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    for control in (*found["links"], *found["annotations"]["list"]):
        del control["placement"]
    return found


def _numbered(rows: tuple[Row, ...]) -> list[tuple[int, Row | Panel]]:
    flat: list[Row | Panel] = []
    for row in rows:
        flat += [row, *row.panels]
    return list(enumerate(flat, start=1))


def _links() -> builders.DashboardLink:
    return (
        builders.DashboardLink("FracGPU")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
    )


def _datasource() -> builders.DatasourceVariable:
    return builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _variable(variable: Variable) -> builders.QueryVariable:
    """Return a variable that is "All" at first, and then matches whatever has no such label."""
    query = f"label_values({variable.series}, {variable.label})"
    return (
        builders.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(_SOURCE)
        .query({"query": query, "refId": f"variable-{variable.name}"})
        .definition(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _moves() -> builders.AnnotationQuery:
    ended = f"increase({rebalancer('moves_total')}[{_ANNOTATION_WINDOW}])"
    return (
        builders.AnnotationQuery()
        .name("Moves that ended")
        .datasource(_SOURCE)
        .enable(enable=True)
        .icon_color("purple")
        .expr(f"sum by (mode, result, reason) ({ended}) > 0")
        .step(_STEP)
        .title_format("{{mode}}: {{result}}")
        .text_format("{{reason}}")
        .tag_keys("mode,result,reason")
    )


def _panel(panel: Panel) -> _AnyPanel:
    built = _BUILDERS[panel.kind](panel)
    built.title(panel.title).datasource(_SOURCE).height(panel.height).span(panel.width)
    built.unit(panel.unit)
    if panel.description:
        built.description(panel.description)
    if panel.maximum is not None:
        built.min(0).max(panel.maximum)
    if panel.no_value:
        built.no_value(panel.no_value)
    if panel.steps:
        built.thresholds(_thresholds(panel.steps))
    for position, query in enumerate(panel.queries):
        built.with_target(_target(query, position, panel.kind))
    return built


def _target(query: Query, position: int, kind: Kind) -> prometheus.Dataquery:
    target = (
        prometheus.Dataquery().datasource(_SOURCE).expr(query.expr).ref_id(_reference(position))
    )
    if kind is Kind.TABLE:
        return target.instant().format(PromQueryFormat.TABLE)
    target.legend_format(query.legend or "__auto")
    return target.instant() if kind is Kind.STAT else target.range()


def _reference(position: int) -> str:
    return chr(ord("A") + position)


def _thresholds(steps: tuple[tuple[float | None, str], ...]) -> Builder[models.ThresholdsConfig]:
    return (
        builders.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in steps])
    )


def _stat(panel: Panel) -> stat.Panel:
    built = stat.Panel().reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
    built.graph_mode(common.BigValueGraphMode.NONE)
    # A figure with labels of its own is shown by its name as well.
    named = any("{{" in query.legend for query in panel.queries)
    built.text_mode(
        common.BigValueTextMode.VALUE_AND_NAME if named else common.BigValueTextMode.AUTO
    )
    if not panel.steps:
        built.color_mode(common.BigValueColorMode.NONE)
    return built


def _lines(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .line_width(1)
        .show_points(common.VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if panel.kind is not Kind.LINES:
        built.stacking(StackingConfig().mode(common.StackingMode.NORMAL)).fill_opacity(40)
    if panel.kind is Kind.BARS:
        built.draw_style(common.GraphDrawStyle.BARS).fill_opacity(80)
    if panel.steps:
        built.thresholds_style(_as_lines())
    return built


def _legend() -> VizLegendOptions:
    return (
        VizLegendOptions()
        .show_legend(show_legend=True)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
    )


def _as_lines() -> GraphThresholdsStyleConfig:
    return GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)


def _history(_: Panel) -> statushistory.Panel:
    built = statushistory.Panel().show_value(common.VisibilityMode.NEVER).row_height(0.9)
    built.color_scheme(_by_value()).legend(VizLegendOptions().show_legend(show_legend=False))
    return built


def _states(panel: Panel) -> statetimeline.Panel:
    built = statetimeline.Panel().show_value(common.VisibilityMode.AUTO).row_height(0.9)
    built.merge_values(merge_values=True).color_scheme(_by_value())
    built.mappings([_mapping(panel.states)]).legend(_legend())
    return built


def _by_value() -> builders.FieldColor:
    return builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def _mapping(states: Mapping[str, tuple[str, str]]) -> models.ValueMapping:
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(states.items())
        }
    )


def _table(panel: Panel) -> table.Panel:
    """Return a table with a row for each set of labels and a column for each query."""
    names = {f"Value #{_reference(at)}": query.legend for at, query in enumerate(panel.queries)}
    built = table.Panel()
    built.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    built.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": names},
        )
    )
    for query in panel.queries:
        if query.unit:
            unit = models.DynamicConfigValue(id_val="unit", value=query.unit)
            built.override_by_name(query.legend, [unit])
        if query.states:
            words = models.DynamicConfigValue(id_val="mappings", value=[_mapping(query.states)])
            built.override_by_name(query.legend, [words])
    if panel.card_links:
        link = {
            "title": "This card",
            "url": f"/d/{CARD_DASHBOARD}?var-card=${{__value.raw}}"
            "&${datasource:queryparam}&${__url_time_range}",
        }
        built.override_by_name("UUID", [models.DynamicConfigValue(id_val="links", value=[link])])
    return built


_BUILDERS: Final[Mapping[Kind, Callable[[Panel], _AnyPanel]]] = {
    Kind.STAT: _stat,
    Kind.LINES: _lines,
    Kind.STACKED: _lines,
    Kind.BARS: _lines,
    Kind.TABLE: _table,
    Kind.HISTORY: _history,
    Kind.STATES: _states,
}
