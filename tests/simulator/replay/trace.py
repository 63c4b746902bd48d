"""A tiny trace of our own, as two CSV files are read."""

from simulator.replay.workload import ReplayWorkload, read_trace

NODES = """\
sn,cpu_milli,memory_mib,gpu,model
small-0,32000,100000,2,A10
small-1,32000,100000,2,A10
large-0,64000,200000,4,H100
cpu-0,64000,200000,0,
"""

PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
half-0,1000,1000,1,500,
half-1,1000,1000,1,500,A10|H100
third,1000,1000,1,330,
whole,2000,2000,1,1000,H100
pair,4000,4000,2,1000,
cpu,2000,4000,0,0,
"""


def a_trace(*, nodes: str = NODES, pods: str = PODS) -> ReplayWorkload:
    return read_trace(nodes=nodes.splitlines(), pods=pods.splitlines())
