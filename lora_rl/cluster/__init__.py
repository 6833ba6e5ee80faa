"""Ray: joining a cluster, the long-lived actors, and calls with deadlines.

connect.py joins or starts a cluster; actors.py finds and starts named actors; roles.py says which a run needs;
layout.py and gpus.py place them on GPUs, turns.py lets colocated ones take turns;
hosted.py what may be called on them; calls.py awaits calls; logs.py brings logs out. workstation.py, processes.py and
token.py are free of Ray, which reads the token's variables when it is imported: call `token_environment` first.
"""
