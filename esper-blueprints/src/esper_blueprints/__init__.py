"""The standard blueprints of Esper.

    Norm                esper_blueprints.norm                 RMS-normalised features            anywhere
    SqueezeExcite       esper_blueprints.squeeze_excite       a gate for each feature            all but vectors
    Pointwise           esper_blueprints.pointwise            an MLP at each position            images, sequences
    DepthwiseSeparable  esper_blueprints.depthwise_separable  a depthwise convolution, a mix     images, sequences
    ConvLight           esper_blueprints.conv_light           two convolutions                   images, sequences
    ConvHeavy           esper_blueprints.conv_heavy           three convolutions, wide inside    images, sequences
    Dilated             esper_blueprints.dilated              dilated convolutions               images, sequences
    Bottleneck          esper_blueprints.bottleneck           a convolution of fewer features    images, sequences
    Mlp                 esper_blueprints.mlp                  an MLP over the features           vectors, tokens
    GatedMlp            esper_blueprints.gated_mlp            products of two linear maps        vectors, tokens
    Lora                esper_blueprints.lora                 a linear map beside a layer        anywhere
    Dora                esper_blueprints.dora                 LoRA that scales rows, too         vectors, tokens
    BottleneckAdapter   esper_blueprints.bottleneck_adapter   a narrow MLP beside a layer        vectors, tokens
    Ia3                 esper_blueprints.ia3                  a factor for each feature          vectors, tokens
    Attention           esper_blueprints.attention            self-attention                     tokens
    GruMixer            esper_blueprints.gru_mixer            a GRU along the tokens             tokens

Besides these, one file each: ``settings`` (of adapters), ``layers`` (what several of them
use), ``informed`` (initial weights chosen from a batch) and ``plugin``, which registers the blueprints by name. Begin
with ``conv_light``. Not here: what a blueprint is (``esper_core.BlueprintSpec``) and how it is checked (esper-testing).
In a program, import a blueprint from its module; this package imports nothing by itself.
"""
