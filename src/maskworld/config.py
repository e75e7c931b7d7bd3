"""One experiment is one frozen value. Pure standard library, imported by every room, importing none.

An experiment file under `experiments/` holds `config = Experiment(...)`; the command line overrides
single fields (`--training.steps 100`). The resolved value is saved as `config.json` in the run folder.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Literal

ContextPart = Literal[
    "initial_state", "task_context", "tool_schemas", "domain_rules", "directives", "initial_observation"
]
CONTEXT_PARTS: tuple[ContextPart, ...] = typing.get_args(ContextPart)


@dataclass(frozen=True)
class DropRates:
    """How often each condition is left out, from 0 (never) to 1 (always)."""

    initial_state: float = 0.0
    task_context: float = 0.0
    tool_schemas: float = 0.0
    domain_rules: float = 0.0
    directives: float = 0.0
    """All directives of a trajectory at once."""
    step_directives: float = 0.0
    """All directives of a step, drawn for each step."""


@dataclass(frozen=True)
class AugmentationConfig:
    """Variants in which the trajectories of the train split are rendered; every copy of a source of weight above 1 is
    another. What is left out of some is what guidance can strengthen later."""

    paraphrase_directives: bool = False
    """Other words for the same directives."""
    rename_entities: bool = False
    """Other names for people and ids, the same ones throughout a trajectory."""
    drop: DropRates = field(default_factory=DropRates)
    seed: int = 0


@dataclass(frozen=True)
class DataConfig:
    """What is trained on and how it is cut into rows."""

    trajectories: str = "tests/data/alfworld_rooms"
    """Folder with `train*.jsonl`, `validation*.jsonl` and `test*.jsonl` of trajectories, also as `.gz` or `.zst`."""
    tokenizer: str = ""
    """An existing `tokenizer.model` or `tokenizer.json`; empty trains a sentencepiece model on the train split."""
    vocabulary_size: int = 1024
    """Pieces of a tokenizer trained here (control tokens and 256 bytes included)."""
    phrases: bool = False
    """Whether a piece of a tokenizer trained here may hold several words ("▁cabinet▁1", ",▁you▁see▁a"). Templated text
    becomes three times shorter, and a thing one token to look up; prose and code gain little."""
    row_length: int = 512
    """L, clean tokens per packed row; a multiple of the block length."""
    target_blocks: int = 0
    """K, most target blocks in a row; 0 chooses the K with which training computes the fewest positions (a row costs
    L clean and noisy_copies * K * S noisy ones), from a sample of the train split. Every row gets this K. With
    `full_sequence` nothing is computed beside a row, and 0 lets all of it be targets."""
    context: tuple[ContextPart, ...] = CONTEXT_PARTS
    """Parts of the state rendered in front of the steps, in order; a constant part costs tokens and says little.
    Without `directives` those of single steps are left out too."""
    source_weights: tuple[str, ...] = ()
    """How often trajectories of a source are rendered into the training rows: `webshop=0.5` takes half of them,
    `tau_bench=2` each twice, `bfcl=0` none; sources without a weight have 1."""
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    shuffle_seed: int = 0
    """Seed of the global shuffle; the order depends on nothing else."""
    workers: int = 0
    """Reader processes per host; 0 reads in threads of the training process."""


Mixer = Literal["attention", "sliding", "convolution"]
"""How a layer moves information between positions."""

Family = Literal["sdar", "sdar_moe", "qwen3", "qwen3_moe", "mistral", "lfm2", "llada", "wedlm"]
"""The public model whose weight names and config.json an export takes; the shapes come from the other fields."""

LORA_TARGETS = ("query", "key", "value", "out", "gate", "up", "down", "input_gate", "output_gate")


@dataclass(frozen=True)
class ExpertsConfig:
    """Mixture of experts in place of some layers' feed-forward networks (Qwen3-MoE, SDAR-MoE)."""

    count: int = 0
    """X, experts of a layer; 0 leaves every layer dense."""
    per_token: int = 8
    """Experts that a token goes to."""
    feed_forward: int = 768
    """F of one expert; the dense layers keep `model.feed_forward`."""
    normalize_weights: bool = True
    """Divide the weights of a token's experts by their sum (`norm_topk_prob`)."""
    every: int = 1
    """Layer i has experts where i + 1 is a multiple of this (`decoder_sparse_step`)."""
    dense_layers: tuple[int, ...] = ()
    """Layers, from 0, that stay dense all the same (`mlp_only_layers`)."""
    balance_weight: float = 0.001
    """Weight of the load-balancing loss (Switch Transformer, arXiv 2101.03961, equation 4)."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank updates of frozen weights (arXiv 2106.09685): W + alpha / rank * A B."""

    rank: int = 0
    """0 trains all weights; above 0 only A and B."""
    alpha: float = 16.0
    targets: tuple[str, ...] = LORA_TARGETS
    """Linear maps of the layers that get an update; of a layer with experts, each expert its own."""

    @property
    def scale(self) -> float:
        """Factor on A B."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of one of the public families; the default is SDAR's, which is Qwen3's. Letters as in WORKSPACE.md."""

    family: Family = "sdar"
    vocabulary_size: int = 0
    """V, rows of the embedding; 0 takes the tokenizer's. Public weights have more rows than their tokenizer has ids."""
    width: int = 192
    """D, size of the residual stream."""
    layers: int = 4
    heads: int = 6
    """H, query heads."""
    kv_heads: int = 2
    """G, key/value heads; H is a multiple of G."""
    head_size: int = 32
    """E, size of one head; independent of D / H."""
    feed_forward: int = 512
    """F, hidden size of the SwiGLU."""
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    query_key_norm: bool = True
    """Root-mean-square norm of every query and key head before the rotation (Qwen3); off in Mistral and LLaDA."""
    attention_bias: bool = False
    """Biases of the query, key and value projections."""
    attention_out_bias: bool = False
    """Bias of the attention's output projection (Qwen3 has all four or none, WeDLM never this one)."""
    mixers: tuple[Mixer, ...] = ()
    """The mixer of each layer; empty makes all of them `attention`. `sliding` sees `sliding_window` keys back,
    `convolution` is LFM2's gated short convolution."""
    sliding_window: int = 0
    """Keys that a position of a `sliding` layer sees, its own included, besides the rest of its block."""
    convolution_length: int = 3
    """Taps of a short convolution, the current position's included."""
    convolution_bias: bool = False
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    tie_embeddings: bool = True
    initializer_std: float = 0.02
    """Standard deviation of the initial matrices; those that write to the stream get 1 / sqrt(2 layers) of it."""
    embedding_std: float = 0.02
    """Standard deviation of the initial embedding; with tied embeddings also the scale of the logits."""
    embedding_multiplier: float = 1.0
    """Factor on embeddings that enter the stream (as in Gemma and Granite). Where it makes them large against the
    branches, tokens stay legible in the stream and copying is learned sooner."""
    scan_layers: bool = True
    """Scan over stacked layers (one layer compiled) or unroll them; the results are equal."""
    remat: Literal["none", "full", "dots"] = "dots"
    """What the backward pass recomputes: nothing, every layer, or all but matrix products."""
    attention: Literal["auto", "reference", "chunked"] = "auto"
    """Kernel of the range attention."""


@dataclass(frozen=True)
class DiffusionConfig:
    """Forward process and objective (ARCHITECTURE words: t, mask rate, mask schedule)."""

    objective: Literal["block_diffusion", "autoregressive", "full_sequence", "wedlm"] = "block_diffusion"
    """`autoregressive` trains and decodes the same network on the next token, from left to right; of the fields here
    only the block length (the grid on which observations begin and are filled with `<end>`) means something then.
    `full_sequence` is LLaDA's: attention both ways over the whole document, of which targets are masked in place; its
    sampler denoises blocks of `block_length` from the end of the prompt, all that follows masked in sight.
    `wedlm` (Tencent's WeDLM) is causal everywhere: inside a noisy block the tokens that are still there stand before
    the masks, and beside the masks the clean stream is trained on the next token."""
    block_length: int = 8
    """S, positions denoised together."""
    block_curriculum: tuple[str, ...] = ()
    """Shorter blocks for the first steps: `1=200,4=300` trains 200 steps with blocks of 1, 300 with blocks of 4, the
    rest with `block_length`, which each must divide."""
    schedule: Literal["linear", "cosine"] = "linear"
    draw_t: Literal["block", "document"] = "block"
    """One noise level per target block or one per document."""
    antithetic: bool = True
    """Stratify the drawn t over the batch: t_i = (u + i / n) mod 1."""
    noisy_copies: int = 1
    """k, independent noisy copies of every target block per clean pass; 1 where there is no clean pass."""
    minimum_mask_rate: float = 1e-3
    """Mask rates are (1 - minimum) p(t) + minimum, which bounds the weight 1 / p."""
    mask_weights: Literal["inverse_rate", "equal"] = "inverse_rate"
    """`wedlm`: whether a masked token weighs 1 / p of its block or as much as any other; the loss is divided by the
    sum of these weights."""
    autoregressive_weight: float = 1.0
    """`wedlm`: w of the loss (masked + w * next token) / (1 + w), each a mean of its own."""
    logits_chunk: int = 128
    """Masked positions per row whose vocabulary logits exist at one time."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Cosine decay after a linear warm-up, clipping by global norm."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon` orthogonalises the momentum of the layers' matrices; embedding, head and norms stay with AdamW."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of those matrices; the others keep `peak_learning_rate`."""
    peak_learning_rate: float = 3e-3
    final_learning_rate_fraction: float = 0.05
    warmup_steps: int = 50
    weight_decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    clip_norm: float = 1.0


@dataclass(frozen=True)
class TrainingConfig:
    """Length, batch, precision and rhythm of a run."""

    steps: int = 1000
    batch_size: int = 8
    """Rows per optimizer step over all hosts, gradient accumulation included."""
    gradient_accumulation: int = 1
    """Microbatches per step; each holds batch_size / gradient_accumulation rows."""
    seed: int = 0
    """Seed of initial weights and noise; noise of step i is drawn from fold_in(seed, i)."""
    initialize_from: str = ""
    """A run whose weights this one begins with (`maskworld convert hf` makes one of a Hugging Face folder); with
    `model.lora.rank` its frozen base. The model's shapes must be the same, `model.*` of that run's config.json."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of activations; master weights and the optimizer stay float32."""
    log_every: int = 20
    validate_every: int = 200
    """Steps between validation losses; 0 never validates."""
    validation_batches: int = 4
    checkpoint_every: int = 200
    keep_last: int = 2
    keep_best: int = 1


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis; one axis may be -1 (all that are left)."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    expert: int = 1
    cpu_devices: int = 0
    """Devices that a machine without accelerator is split into, one core each (data parallelism is the only kind that
    keeps small matrices busy there); 0 takes as many of its cores as divide a microbatch."""


@dataclass(frozen=True)
class SamplerConfig:
    """How observations are decoded (see `diffusion.sampler`, for `wedlm` `diffusion.streaming`)."""

    rule: Literal["low_confidence_static", "low_confidence_dynamic", "sequential", "entropy_distance"] = (
        "low_confidence_dynamic"
    )
    """`entropy_distance` is that of WeDLM's engine, for `wedlm` only."""
    threshold: float = 0.9
    """Dynamic rule: every masked position above this confidence is committed (`wedlm`: or at it)."""
    denoising_steps: int = 0
    """Forwards a block may take; 0 means the block length."""
    max_new_tokens: int = 96
    temperature: float = 0.0
    """0 takes the most likely token."""
    window: int = 0
    """`wedlm`: how many positions are open at a time, counted from the first mask on, so that each one filled there
    opens another; WeDLM's engine has 16. Such a window crosses the ends of blocks, which no training batch shows, and
    models that saw little then repeat themselves. 0 fills block after block."""
    blocks_from_prompt: bool = False
    """`wedlm` without a window: count blocks from the end of the prompt, as WeDLM's own loop does, and not from the
    beginning of the document, as in training."""
    entropy_threshold: float = 0.4
    """Rule `entropy_distance`: every masked position with entropy + penalty * distance below it (nats) is committed."""
    distance_penalty: float = 0.02
    """Rule `entropy_distance`: nats added for each position between the first mask and a later one."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Which held-out transitions are generated and scored."""

    transitions: int = 512
    """Held-out transitions that are generated and scored; 0 takes all."""
    batch_size: int = 32
    seed: int = 0
    """Seed of the choice of transitions."""


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the numbers of a run."""

    name: str = "unnamed"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


@dataclass(frozen=True)
class ModelContract:
    """What a checkpoint means. Stored in each one and compared on load; a difference is refused by field name."""

    block_length: int
    mask_id: int
    pad_id: int
    end_id: int
    vocabulary_size: int
    schedule: str
    tokenizer_hash: str
    logit_alignment: Literal["same_position", "shifted"] = "same_position"
    """Whether the logits of a position predict its own token, or (autoregressive) the next one."""
    control_ids: tuple[int, ...] = ()
    """Of the tokenizer's control tokens; those that a pretrained embedding lacked were drawn at the start."""
