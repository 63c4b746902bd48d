{{/*
The prefix of the names of our objects. It is not the release's name: only one FracGPU runs in a
cluster, and who upgrades a release of any name keeps its objects. Names that our own programs, users
and commands look up stay the same whatever it is: the ConfigMap fracgpu-config, the Leases, the policies and the webhook configurations.
*/}}
{{- define "fracgpu.fullname" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The part of an object's name that says whose it is; a value's name is in camel case. */}}
{{- define "fracgpu.suffix" -}}
{{- if eq . "schedulerFiles" }}kube-scheduler-files{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/*
The labels of an object: (list . COMPONENT). The manifests in deploy/ are rendered without those that
only Helm may say.
*/}}
{{- define "fracgpu.labels" -}}
{{- $root := index . 0 -}}
{{- include "fracgpu.podLabels" . }}
{{- if eq $root.Values.creator "helm" }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels of a pod: (list . COMPONENT). */}}
{{- define "fracgpu.podLabels" -}}
{{- $root := index . 0 -}}
{{- if hasKey (index $root.Values (index . 1) | default dict) "podLabels" }}
{{- include "fracgpu.selectorLabels" (index . 1) }}
{{- else }}
{{- "app.kubernetes.io/name: fracgpu" }}
{{- end }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ index . 1 | replace "schedulerFiles" "cluster-scheduler" }}
app.kubernetes.io/part-of: fracgpu
{{- end -}}

{{/*
The label by which Services, policies and monitors find the pods of a component. A workload's selector
can never be changed, so this is independent of every value.
*/}}
{{- define "fracgpu.selectorLabels" -}}
app.kubernetes.io/name: fracgpu-{{ include "fracgpu.suffix" . }}
{{- end -}}

{{/* The service account of a component: (list . COMPONENT). */}}
{{- define "fracgpu.serviceAccountName" -}}
{{- $root := index . 0 -}}
{{- $account := (index $root.Values (index . 1)).serviceAccount -}}
{{- if $account.create -}}
{{- $account.name | default (printf "%s-%s" (include "fracgpu.fullname" $root) (include "fracgpu.suffix" (index . 1))) -}}
{{- else -}}
{{- required (printf "%s.serviceAccount.create is false: want the name of your own account in %s.serviceAccount.name" (index . 1) (index . 1)) $account.name -}}
{{- end -}}
{{- end -}}

{{/* The ServiceAccount of a component, unless it is the administrator's: (list . COMPONENT). */}}
{{- define "fracgpu.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $account := (index $root.Values (index . 1)).serviceAccount -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "fracgpu.serviceAccountName" . }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "fracgpu.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* The user that the API server sees when a component calls it: (list . COMPONENT). */}}
{{- define "fracgpu.user" -}}
system:serviceaccount:{{ (index . 0).Release.Namespace }}:{{ include "fracgpu.serviceAccountName" . }}
{{- end -}}

{{/* FracGPU's image: registry/repository:tag@digest, from the mirror if there is one. */}}
{{- define "fracgpu.image" -}}
{{- $image := .Values.image -}}
{{- if eq .Values.creator "kustomize" -}}
{{- $image.repository -}}
{{- else -}}
{{- with .Values.imageRegistry | default $image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- $image.repository }}:{{ $image.tag | default .Chart.AppVersion -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* kube-scheduler's image, of the cluster's own version: it must not be newer than the API server. */}}
{{- define "fracgpu.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- if eq .Values.creator "kustomize" -}}
{{- $image.repository -}}
{{- else -}}
{{- $version := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{- with .Values.imageRegistry | default $image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- $image.repository }}:{{ $image.tag | default $version -}}
{{- end -}}
{{- end -}}

{{/*
What a pod's metadata has: (list . COMPONENT PORT TEMPLATE...), PORT being that of its metrics. The pods
restart with what any TEMPLATE renders to; in deploy/ kustomize sees to that.
*/}}
{{- define "fracgpu.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
labels:
  {{- include "fracgpu.podLabels" . | nindent 2 }}
  {{- with $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := dict }}
{{- if $root.Values.prometheus.scrapeAnnotations }}
{{- $annotations = dict "prometheus.io/scrape" "true" "prometheus.io/port" (index . 2 | toString) }}
{{- end }}
{{- if eq $root.Values.creator "helm" }}
{{- $_ := set $annotations "checksum/wiring" (sha256sum $root.Values.wiring) }}
{{- range slice . 3 }}
{{- $text := include (printf "%s/%s" $root.Template.BasePath .) $root }}
{{- $_ := set $annotations (printf "checksum/%s" (base . | trimSuffix ".yaml")) (sha256sum $text) }}
{{- end }}
{{- end }}
{{- with merge (dict) $values.podAnnotations $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where a component's pods run, and as whom: (list . COMPONENT). */}}
{{- define "fracgpu.podSettings" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
serviceAccountName: {{ include "fracgpu.serviceAccountName" . }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The network of the host, where the API server cannot reach pods: the values of a component. */}}
{{- define "fracgpu.hostNetwork" -}}
{{- if .hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- end -}}

{{/*
How the pods of a Deployment are replaced: (list VALUES STEPS), STEPS being what rollingUpdate is by
default. In the host's network there may be no node on which one more pod finds its ports free.
*/}}
{{- define "fracgpu.strategy" -}}
{{- $values := index . 0 -}}
{{- $steps := ternary (dict "maxSurge" 0 "maxUnavailable" 1) (index . 1) $values.hostNetwork -}}
{{- $default := ternary (dict "type" "RollingUpdate" "rollingUpdate" $steps) dict (gt (len $steps) 0) -}}
{{- with $values.updateStrategy | default $default }}
strategy: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Replicas on different nodes, where there are several: COMPONENT. */}}
{{- define "fracgpu.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "fracgpu.selectorLabels" . | nindent 8 }}
{{- end -}}

{{/* What every container of our image has: (list . COMPONENT). */}}
{{- define "fracgpu.container" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
image: {{ include "fracgpu.image" $root | quote }}
{{- with $root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- range $probe := list "startupProbe" "livenessProbe" "readinessProbe" }}
{{- with index $values $probe }}
{{ $probe }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
resources: {{- toYaml $values.resources | nindent 2 }}
securityContext: {{- toYaml $values.securityContext | nindent 2 }}
{{- end -}}

{{/* A PodDisruptionBudget, which with one replica would keep its node from being drained: (list . COMPONENT). */}}
{{- define "fracgpu.podDisruptionBudget" -}}
{{- $root := index . 0 -}}
{{- if and $root.Values.podDisruptionBudgets.enabled (ge (int (index $root.Values (index . 1)).replicas) 2) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "fracgpu.fullname" $root }}-{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "fracgpu.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ $root.Values.podDisruptionBudgets.maxUnavailable }}
  selector:
    matchLabels: {{- include "fracgpu.selectorLabels" (index . 1) | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* Whether pods are placed by, or being prepared for, the cluster's own kube-scheduler: "true" or nothing. */}}
{{- define "fracgpu.clusterSchedulerFiles" -}}
{{- if has .Values.scheduler.mode (list "prepare" "cluster") -}}true{{- end -}}
{{- end -}}

{{/* Whether some node's cards are allocated by the cluster's kube-scheduler, to claims: "true" or nothing. */}}
{{- define "fracgpu.claims" -}}
{{- if has "claims" (splitList "+" .Values.wiring) -}}true{{- end -}}
{{- end -}}

{{/* Whether some node's cards are chosen by our extender: "true" or nothing. */}}
{{- define "fracgpu.extender" -}}
{{- if has "devicePlugin" (splitList "+" .Values.wiring) -}}true{{- end -}}
{{- end -}}

{{/* Whether a kube-scheduler of ours runs beside the extender: "true" or nothing. */}}
{{- define "fracgpu.ownKubeScheduler" -}}
{{- if and (ne .Values.scheduler.mode "cluster") (include "fracgpu.extender" .) -}}true{{- end -}}
{{- end -}}

{{/* Whether PodMonitor and PrometheusRule are rendered: "true" or nothing. */}}
{{- define "fracgpu.prometheusOperator" -}}
{{- $wanted := .Values.prometheus.operator.enabled -}}
{{- $served := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" -}}
{{- if or (eq $wanted "always") (and (eq $wanted "auto") $served) -}}true{{- end -}}
{{- end -}}

{{/* The node's folder with the container runtime's socket. */}}
{{- define "fracgpu.runtimeFolder" -}}
{{- $platforms := dict "k3s" "/run/k3s/containerd" "rke2" "/run/k3s/containerd" "openshift" "/var/run/crio" -}}
{{- .Values.deviceplugin.runtimeFolder | default (get $platforms .Values.platform) | default "/run/containerd" -}}
{{- end -}}
