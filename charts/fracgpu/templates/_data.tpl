{{- /* Made by `make chart` from the ConfigMaps that kustomize generates: change that instead. */ -}}
{{- define "fracgpu.data.fracgpu-scheduler-profile" -}}
profile.yaml: |
  # kube-scheduler beside the extender; pods that FracGPU admits name this profile. The two speak
  # mutual TLS through the Service, which has only the extender that leads.
  apiVersion: kubescheduler.config.k8s.io/v1
  kind: KubeSchedulerConfiguration
  leaderElection:
    leaderElect: true
    resourceName: fracgpu-scheduler
    resourceNamespace: fracgpu-system
  profiles:
    - schedulerName: fracgpu-scheduler
      # All nodes, also of a large cluster: docs/decisions/0008-every-node-is-scored.md.
      percentageOfNodesToScore: 100
      plugins:
        score:
          # They prefer nodes with much free CPU and memory, which does not make a GPU node better.
          disabled:
            - name: NodeResourcesFit
            - name: NodeResourcesBalancedAllocation
            - name: ImageLocality
          # Ten times their defaults: what a pod prefers counts before what the extender prefers, which
          # is 100 at most, also where a preference tells two nodes apart by a tenth of its weight.
          enabled:
            - {name: TaintToleration, weight: 30}
            - {name: NodeAffinity, weight: 20}
            - {name: PodTopologySpread, weight: 20}
            - {name: InterPodAffinity, weight: 20}
  extenders:
    - urlPrefix: https://fracgpu-scheduler-leader.fracgpu-system.svc:9404
      filterVerb: filter
      prioritizeVerb: prioritize
      preemptVerb: preempt
      bindVerb: bind
      # Ten points count as 100 of kube-scheduler's.
      weight: 1
      enableHTTPS: true
      tlsConfig:
        # All replicas have this certificate.
        serverName: fracgpu-scheduler.fracgpu-system.svc
        caFile: /etc/fracgpu-client/ca.crt
        certFile: /etc/fracgpu-client/tls.crt
        keyFile: /etc/fracgpu-client/tls.key
      nodeCacheCapable: true
      httpTimeout: 10s
      # Without the extender no pod with a share may be placed: no card would be chosen.
      ignorable: false
      managedResources:
        - name: fracgpu.io/gpu-mem
          ignoredByScheduler: false
{{ end }}
{{- define "fracgpu.data.fracgpu-kube-scheduler" -}}
config.yaml: |
  # The configuration of the cluster's own kube-scheduler (--config). With --config it ignores its flag
  # --kubeconfig, so that is set here, with kubeadm's path. --leader-elect still counts. The name of the
  # Service is replaced by its address on the node: a static pod cannot resolve Service names.
  apiVersion: kubescheduler.config.k8s.io/v1
  kind: KubeSchedulerConfiguration
  clientConnection:
    kubeconfig: /etc/kubernetes/scheduler.conf
  leaderElection:
    leaderElect: true
  profiles:
    - schedulerName: default-scheduler
      # All nodes, also of a large cluster: docs/decisions/0008-every-node-is-scored.md.
      percentageOfNodesToScore: 100
      plugins:
        score:
          # Ten times their defaults, all of them, so that they weigh as before against each other and
          # a pod's preferences count before what the extender prefers.
          enabled:
            - {name: TaintToleration, weight: 30}
            - {name: NodeAffinity, weight: 20}
            - {name: PodTopologySpread, weight: 20}
            - {name: InterPodAffinity, weight: 20}
            - {name: NodeResourcesFit, weight: 10}
            - {name: NodeResourcesBalancedAllocation, weight: 10}
            - {name: ImageLocality, weight: 10}
    # For pods from before the change, and for pods that name it.
    - schedulerName: fracgpu-scheduler
      percentageOfNodesToScore: 100
      plugins:
        score:
          disabled:
            - name: NodeResourcesFit
            - name: NodeResourcesBalancedAllocation
            - name: ImageLocality
          # Ten times their defaults: what a pod prefers counts before what the extender prefers, which
          # is 100 at most, also where a preference tells two nodes apart by a tenth of its weight.
          enabled:
            - {name: TaintToleration, weight: 30}
            - {name: NodeAffinity, weight: 20}
            - {name: PodTopologySpread, weight: 20}
            - {name: InterPodAffinity, weight: 20}
  extenders:
    - urlPrefix: https://fracgpu-scheduler-leader.fracgpu-system.svc:9404
      filterVerb: filter
      prioritizeVerb: prioritize
      preemptVerb: preempt
      bindVerb: bind
      weight: 1
      enableHTTPS: true
      tlsConfig:
        serverName: fracgpu-scheduler.fracgpu-system.svc
        caFile: /etc/fracgpu/kube-scheduler/current/ca.crt
        certFile: /etc/fracgpu/kube-scheduler/current/tls.crt
        keyFile: /etc/fracgpu/kube-scheduler/current/tls.key
      nodeCacheCapable: true
      httpTimeout: 10s
      # Only pods that request a share of a card reach the extender; they must not be placed without it.
      ignorable: false
      managedResources:
        - name: fracgpu.io/gpu-mem
          ignoredByScheduler: false
{{ end }}
{{- define "fracgpu.data.fracgpu-simulated-cards" -}}
cards.yaml: |
  {{- .Values.simulatedCards.cards | nindent 2 }}
{{ end }}
