"""maskworld: masked block-diffusion language models as text world models, in JAX."""

__version__ = "0.1.0"
