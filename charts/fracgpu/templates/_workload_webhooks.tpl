{{/*
  An entry for workloads whose pod templates have a key of ours. Arguments: the chart; the path of
  the webhook; "own" for Kubernetes' kinds or "other"; further conditions.
*/}}
{{ define "fracgpu.workloadsEntry" -}}
{{- $ := index . 0 }}{{ $path := index . 1 }}{{ $kinds := index . 2 -}}
failurePolicy: Fail
timeoutSeconds: 5
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
clientConfig:
  service:
    name: {{ include "fracgpu.fullname" $ }}-webhook
    namespace: {{ $.Release.Namespace }}
    path: {{ $path }}
    port: 443
namespaceSelector:
  matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: [{{ $.Release.Namespace }}, kube-system]}
    {{- with $.Values.webhook.namespaceSelector.matchExpressions }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $.Values.webhook.namespaceSelector.matchLabels }}
  matchLabels: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- with $.Values.webhook.objectSelector }}
objectSelector: {{- toYaml . | nindent 2 }}
{{- end }}
rules:
  {{- include (printf "fracgpu.%sWorkloads" $kinds) $ | nindent 2 }}
matchConditions:
  {{- index . 3 | nindent 2 }}
  # A template that an update does not change is not sent again, so that workloads can scale
  # and end while the webhook is down.
  {{- if eq $path "/validate" }} A key that is new on the workload itself is, for its warning.
  {{- end }}
  - name: template-is-new
    expression: >-
      oldObject == null || [[object, oldObject].map(whole,
      {{ include (printf "fracgpu.%sTemplates" $kinds) $ | indent 6 | trim }})].exists(it, it[0] != it[1])
      {{- if eq $path "/validate" }} ||
      {{- range $at, $part := list "annotations" "labels" }}
      {{- if $at }} ||{{ end }}
      (has(object.metadata.{{ $part }}) && object.metadata.{{ $part }}.exists(key,
      key.matches('(?i)^f[racgpu-]{4}') &&
      !(has(oldObject.metadata.{{ $part }}) && key in oldObject.metadata.{{ $part }})))
      {{- end }}
      {{- end }}
{{- end }}

{{ define "fracgpu.ownWorkloads" -}}
- apiGroups: [apps]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [deployments, statefulsets, daemonsets, replicasets]
  scope: Namespaced
- apiGroups: [batch]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [jobs, cronjobs]
  scope: Namespaced
- apiGroups: [""]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [replicationcontrollers, podtemplates]
  scope: Namespaced
{{- end }}

{{/* In CEL: the pod templates of the object `whole`; a PodTemplate has no spec. */}}
{{ define "fracgpu.ownTemplates" -}}
[has(whole.template) ? whole.template : has(whole.spec.jobTemplate) ?
whole.spec.jobTemplate.spec.template : whole.spec.template]
{{- end }}

{{/*
  In CEL: whether some metadata has a key of ours, or an amount under a domain of the same letters.
  Nearly no label begins with f, so that nearly none is searched.
*/}}
{{ define "fracgpu.noted" -}}
(has({{ . }}.annotations) &&
{{ . }}.annotations.map(key, key).join('\n').matches(
'(?mi)^f(racgpu|[racgpu-]{4,8}([.][a-z.]*)?/(fraction|memory)$)')) ||
(has({{ . }}.labels) &&
{{ . }}.labels.exists(key, key.startsWith('f') && (key.startsWith('fracgpu.io/') ||
key.matches('(?i)^f(racgpu[^/]*|[racgpu-]{4,8}([.][a-z.]*)?)[./](fraction|memory)$'))))
{{- end }}

{{/* In CEL: whether some containers have a resource of ours. */}}
{{ define "fracgpu.limited" -}}
({{ . }}.containers +
(has({{ . }}.initContainers) ? {{ . }}.initContainers : [])).exists(c,
has(c.resources) && (
(has(c.resources.limits) && c.resources.limits.exists(key, key.startsWith('fracgpu.io/'))) ||
(has(c.resources.requests) && c.resources.requests.exists(key, key.startsWith('fracgpu.io/')))))
{{- end }}

{{/* In CEL: whether a pod template of "own" or "other" kinds has a key of ours. */}}
{{ define "fracgpu.templatesAsk" -}}
[object].exists(whole,
{{ include (printf "fracgpu.%sTemplates" .) . }}.exists(t,
(has(t.metadata) && ({{ include "fracgpu.noted" "t.metadata" }})) ||
(has(t.spec) && has(t.spec.containers) &&
{{ include "fracgpu.limited" "t.spec" }})))
{{- end }}

{{ define "fracgpu.workloadsAsk" -}}
# Only workloads with a key of ours, in their template or, by mistake, on themselves or on the
# Jobs of a CronJob.
- name: asks-for-fracgpu
  expression: >-
    {{- if eq . "own" }}
    (has(object.spec) && has(object.spec.jobTemplate) && has(object.spec.jobTemplate.metadata) &&
    ({{ include "fracgpu.noted" "object.spec.jobTemplate.metadata" | indent 4 | trim }})) ||
    {{- end }}
    {{ include "fracgpu.noted" "object.metadata" | indent 4 | trim }} ||
    {{ include "fracgpu.templatesAsk" . | indent 4 | trim }}
{{- end }}

{{ define "fracgpu.templatesToGrant" -}}
# What a controller made is left as it is: it compares that with its own template.
- name: has-no-controller
  expression: >-
    !has(object.metadata.ownerReferences) ||
    !object.metadata.ownerReferences.exists(it, has(it.controller) && it.controller)
- name: asks-for-fracgpu
  expression: >-
    {{ include "fracgpu.templatesAsk" . | indent 4 | trim }}
{{- end }}
