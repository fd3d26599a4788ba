"""Stage A, on the node: what its GPUs are and how they are used.

    nvml.py        reads NVML once               ─┐ in a child process, since NVML can hang or crash the process it
    child.py       ... and again for each asking ─┘ runs in
    reading.py     what such a read found
    health.py      what it means: which GPUs may be allocated, and why not
    sampler.py     the parent of that child: always has an answer
    simulated.py   GPUs that do not exist, and behave
    model_store.py what is in the node's model store, looked through in a thread now and then
    source.py      the above, as something that can be asked for a report
    agent.py       ... and serves what it says over HTTP (`jupyter gpufit reporter`)

Importing any of it but `nvml.py` loads no NVML.
"""
