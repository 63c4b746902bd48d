{{/* Workloads of other systems, for webhook.yaml; written by make manifests. */}}
{{ define "fracgpu.otherWorkloads" -}}
- apiGroups: [argoproj.io]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [rollouts]
  scope: Namespaced
- apiGroups: [batch.volcano.sh]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [jobs]
  scope: Namespaced
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
((has(whole.spec) &&
has(whole.spec.template) ?
[whole.spec.template] : []) +
(has(whole.spec) &&
has(whole.spec.tasks) ?
whole.spec.tasks.filter(it, has(it.template)).map(it, it.template) : []) +
(has(whole.spec) &&
has(whole.spec.replicatedJobs) ?
whole.spec.replicatedJobs.filter(it, has(it.template) &&
has(it.template.spec) &&
has(it.template.spec.template)).map(it, it.template.spec.template) : []) +
(has(whole.spec) &&
has(whole.spec.leaderWorkerTemplate) &&
has(whole.spec.leaderWorkerTemplate.leaderTemplate) ?
[whole.spec.leaderWorkerTemplate.leaderTemplate] : []) +
(has(whole.spec) &&
has(whole.spec.leaderWorkerTemplate) &&
has(whole.spec.leaderWorkerTemplate.workerTemplate) ?
[whole.spec.leaderWorkerTemplate.workerTemplate] : []) +
(has(whole.spec) &&
has(whole.spec.headGroupSpec) &&
has(whole.spec.headGroupSpec.template) ?
[whole.spec.headGroupSpec.template] : []) +
(has(whole.spec) &&
has(whole.spec.workerGroupSpecs) ?
whole.spec.workerGroupSpecs.filter(it, has(it.template)).map(it, it.template) : []) +
(has(whole.spec) &&
has(whole.spec.rayClusterSpec) &&
has(whole.spec.rayClusterSpec.headGroupSpec) &&
has(whole.spec.rayClusterSpec.headGroupSpec.template) ?
[whole.spec.rayClusterSpec.headGroupSpec.template] : []) +
(has(whole.spec) &&
has(whole.spec.rayClusterSpec) &&
has(whole.spec.rayClusterSpec.workerGroupSpecs) ?
whole.spec.rayClusterSpec.workerGroupSpecs.filter(it, has(it.template)).map(it, it.template) : []) +
(has(whole.spec) &&
has(whole.spec.rayClusterConfig) &&
has(whole.spec.rayClusterConfig.headGroupSpec) &&
has(whole.spec.rayClusterConfig.headGroupSpec.template) ?
[whole.spec.rayClusterConfig.headGroupSpec.template] : []) +
(has(whole.spec) &&
has(whole.spec.rayClusterConfig) &&
has(whole.spec.rayClusterConfig.workerGroupSpecs) ?
whole.spec.rayClusterConfig.workerGroupSpecs.filter(it, has(it.template)).map(it, it.template) : []))
{{- end }}
