"""PromQL text: it parses, and follows the policy."""

import shutil
import subprocess
from pathlib import Path

import yaml

from fracgpu.disruption.policy import RebalancerPolicy
from rebalancer.usage import promql

SHORT = RebalancerPolicy(fast_window_s=10, slow_window_s=20, forecast_window_s=30, step_s=2)


def questions(policy: RebalancerPolicy) -> dict[str, str]:
    made = (
        *(promql.samples, promql.peak, promql.level, promql.slow_level, promql.fast_hot),
        *(promql.slow_hot, promql.history, promql.pod_mean, promql.pod_samples),
        *(promql.busy_changes, promql.power_changes),
        promql.active,
    )
    fixed = {
        "busy": promql.BUSY,
        "lately_busy_changes": promql.lately_busy_changes(15),
        "lately_power_changes": promql.lately_power_changes(15),
        "interval": promql.interval(policy.fast_window_s),
        "age": promql.AGE,
        "collect_age": promql.COLLECT_AGE,
        "free": promql.FREE_MIB,
    }
    return fixed | {query.__name__: query(policy) for query in made}


def test_promtool_understands_every_question(tmp_path: Path) -> None:
    rules = [
        {"record": f"q:{name}", "expr": text}
        for name, text in questions(RebalancerPolicy()).items()
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "questions", "rules": rules}]}))
    promtool = shutil.which("promtool")
    assert promtool, "promtool comes with prometheus"

    run = subprocess.run(  # noqa: S603 - our own file, the distribution's tool
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(rules)} rules found" in run.stdout


def test_windows_and_steps_follow_the_policy() -> None:
    found = questions(SHORT)

    assert found["level"].endswith("[10000ms:2000ms])")
    assert found["slow_hot"].endswith("> bool 80)[20000ms:2000ms])")
    assert "[30000ms]" in found["history"]
    assert "[20000ms]" in found["pod_mean"]
    assert "> bool 92.5)" in promql.fast_hot(RebalancerPolicy(hot_ratio=0.925))
