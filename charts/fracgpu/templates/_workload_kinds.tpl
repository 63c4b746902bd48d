{{/* Workloads of other systems, for webhook.yaml; written by make manifests. */}}
{{ define "fracgpu.otherWorkloads" -}}
- apiGroups: [jobset.x-k8s.io]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [jobsets]
  scope: Namespaced
- apiGroups: [leaderworkerset.x-k8s.io]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [leaderworkersets]
  scope: Namespaced
- apiGroups: [ray.io]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [rayclusters, rayjobs, rayservices]
  scope: Namespaced
{{- end }}
{{ define "fracgpu.otherTemplates" -}}
((has(spec.replicatedJobs) ?
spec.replicatedJobs.filter(it, has(it.template) &&
has(it.template.spec) &&
has(it.template.spec.template)).map(it, it.template.spec.template) : []) +
(has(spec.leaderWorkerTemplate) &&
has(spec.leaderWorkerTemplate.leaderTemplate) ?
[spec.leaderWorkerTemplate.leaderTemplate] : []) +
(has(spec.leaderWorkerTemplate) &&
has(spec.leaderWorkerTemplate.workerTemplate) ?
[spec.leaderWorkerTemplate.workerTemplate] : []) +
(has(spec.headGroupSpec) &&
has(spec.headGroupSpec.template) ?
[spec.headGroupSpec.template] : []) +
(has(spec.workerGroupSpecs) ?
spec.workerGroupSpecs.filter(it, has(it.template)).map(it, it.template) : []) +
(has(spec.rayClusterSpec) &&
has(spec.rayClusterSpec.headGroupSpec) &&
has(spec.rayClusterSpec.headGroupSpec.template) ?
[spec.rayClusterSpec.headGroupSpec.template] : []) +
(has(spec.rayClusterSpec) &&
has(spec.rayClusterSpec.workerGroupSpecs) ?
spec.rayClusterSpec.workerGroupSpecs.filter(it, has(it.template)).map(it, it.template) : []) +
(has(spec.rayClusterConfig) &&
has(spec.rayClusterConfig.headGroupSpec) &&
has(spec.rayClusterConfig.headGroupSpec.template) ?
[spec.rayClusterConfig.headGroupSpec.template] : []) +
(has(spec.rayClusterConfig) &&
has(spec.rayClusterConfig.workerGroupSpecs) ?
spec.rayClusterConfig.workerGroupSpecs.filter(it, has(it.template)).map(it, it.template) : []))
{{- end }}
