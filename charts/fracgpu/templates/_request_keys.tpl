{{/* The annotations of a request, as a list in CEL; written by make manifests. */}}
{{ define "fracgpu.requestKeys" -}}
['fracgpu.io/fraction', 'fracgpu.io/memory', 'fracgpu.io/fraction-limit',
'fracgpu.io/memory-limit', 'fracgpu.io/cores', 'fracgpu.io/cards', 'fracgpu.io/vendor',
'fracgpu.io/model', 'fracgpu.io/placement', 'fracgpu.io/topology', 'fracgpu.io/isolation',
'fracgpu.io/rebalance', 'fracgpu.io/gang']
{{- end }}
