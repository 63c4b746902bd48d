{{/* Written by hand; all other templates are made from deploy/ by `make chart`. */}}

{{/* FracGPU's image: registry/repository:tag@digest, from the mirror if there is one. */}}
{{- define "fracgpu.image" -}}
{{- $image := .Values.image -}}
{{- $registry := .Values.imageRegistry | default $image.registry -}}
{{- with $registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- $image.repository }}:{{ $image.tag | default .Chart.AppVersion -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* kube-scheduler's image, of the cluster's own version: it must not be newer than the API server. */}}
{{- define "fracgpu.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- $registry := .Values.imageRegistry | default $image.registry -}}
{{- $version := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{- with $registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- $image.repository }}:{{ $image.tag | default $version -}}
{{- end -}}

{{/* Whether PodMonitor and PrometheusRule are rendered: "true" or nothing. */}}
{{- define "fracgpu.prometheusOperator" -}}
{{- $wanted := .Values.prometheus.operator.enabled -}}
{{- $served := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" -}}
{{- if or (eq $wanted "always") (and (eq $wanted "auto") $served) -}}true{{- end -}}
{{- end -}}

{{/* Where an alert's runbook is: below the address of this repository, or a path in it without one. */}}
{{- define "fracgpu.runbookUrl" -}}
{{- $context := index . 0 -}}
{{- with $context.Values.prometheus.operator.runbookBaseUrl }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- index . 1 -}}
{{- end -}}

{{/*
The name of a ConfigMap with a hash of its content, so that pods restart with new content. It is the
name that kustomize gives it: SHA-256 of its JSON, ten digits, with letters for those that could form words.
*/}}
{{- define "fracgpu.hashedName" -}}
{{- $context := index . 0 -}}
{{- $stem := index . 1 -}}
{{- $data := include (printf "fracgpu.data.%s" $stem) $context | fromYaml -}}
{{- $hash := dict "data" $data "kind" "ConfigMap" "name" "" | toJson | sha256sum | trunc 10 -}}
{{- $hash = $hash | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t" -}}
{{- printf "%s-%s" $stem $hash -}}
{{- end -}}
