"""The standard blueprints of Esper: what a seed can grow into.

    Norm                esper_blueprints.norm                 features brought to one size       anywhere
    SqueezeExcite       esper_blueprints.squeeze_excite       a gate for each feature            all but vectors
    Pointwise           esper_blueprints.pointwise            an MLP at each position by itself  images, sequences
    DepthwiseSeparable  esper_blueprints.depthwise_separable  neighbours in each feature, a mix  images, sequences
    ConvLight           esper_blueprints.conv_light           two convolutions: sees neighbours  images, sequences
    ConvHeavy           esper_blueprints.conv_heavy           three of them, wide inside         images, sequences
    Dilated             esper_blueprints.dilated              neighbours ever further apart      images, sequences
    Bottleneck          esper_blueprints.bottleneck           neighbours of a few summaries      images, sequences
    Mlp                 esper_blueprints.mlp                  an MLP over the features           vectors, tokens
    LowRank             esper_blueprints.low_rank             a linear map of low rank           vectors, tokens
    GatedMlp            esper_blueprints.gated_mlp            products of two views              vectors, tokens
    lora_small          esper_blueprints.lora                 a linear map of rank 4             tokens
    lora_large          esper_blueprints.lora                 a linear map of rank 16            tokens
    Attention           esper_blueprints.attention            each token asks all others         tokens
    GruMixer            esper_blueprints.gru_mixer            a memory runs along the tokens     tokens

The plugin registers them by name; in a program, import them from where they stand. This page imports nothing.
"""
