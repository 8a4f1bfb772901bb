"""Parts of bench/*_gpu.py: arguments, clocks, a Llama in plain torch, the peers, and where results go."""
