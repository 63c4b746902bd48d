"""What each role needs: the roles as shipped, in a large cluster under steady load.

The cluster's objects are written into a real API server's etcd, and a stand-in for Prometheus
answers the rebalancer. Start with `benchmark.py`.
"""
