"""The extender of kube-scheduler: which card a pod gets, and the Binding that says so."""
