/* The papers of the attention operators, feature maps and relative positions, as --help prints them. */
#ifndef VIT_LAYERS_PAPERS_H
#define VIT_LAYERS_PAPERS_H

#define PAPER_ATTENTION "Attention Is All You Need (Vaswani et al., 2017), arXiv:1706.03762"
#define PAPER_CASTLING \
    "Castling-ViT: Compressing Self-Attention via Switching Towards Linear-Angular Attention at Vision Transformer " \
    "Inference (You et al., 2022), arXiv:2211.10526"
#define PAPER_CONVIT \
    "ConViT: Improving Vision Transformers with Soft Convolutional Inductive Biases (d'Ascoli et al., 2021), " \
    "arXiv:2103.10697"
#define PAPER_CONVNEXT "A ConvNet for the 2020s (Liu et al., 2022), arXiv:2201.03545"
#define PAPER_CSWIN \
    "CSWin Transformer: A General Vision Transformer Backbone with Cross-Shaped Windows (Dong et al., 2021), " \
    "arXiv:2107.00652"
#define PAPER_DPFP "Linear Transformers Are Secretly Fast Weight Programmers (Schlag et al., 2021), arXiv:2102.11174"
#define PAPER_EFFICIENT "Efficient Attention: Attention with Linear Complexities (Shen et al., 2018), arXiv:1812.01243"
#define PAPER_EFFICIENTVIT \
    "EfficientViT: Multi-Scale Linear Attention for High-Resolution Dense Prediction (Cai et al., 2022), arXiv:2205.14756"
#define PAPER_FLATTEN \
    "FLatten Transformer: Vision Transformer using Focused Linear Attention (Han et al., 2023), arXiv:2308.00442"
#define PAPER_GF "Global Filter Networks for Image Classification (Rao et al., 2021), arXiv:2107.00645"
#define PAPER_HYDRA "Hydra Attention: Efficient Attention with Many Heads (Bolya et al., 2022), arXiv:2209.07484"
#define PAPER_INCEPTION "Inception Transformer (Si et al., 2022), arXiv:2205.12956"
#define PAPER_LAMBDA \
    "LambdaNetworks: Modeling Long-Range Interactions Without Attention (Bello, 2021), arXiv:2102.08602"
#define PAPER_LINEAR \
    "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention (Katharopoulos et al., 2020), " \
    "arXiv:2006.16236"
#define PAPER_LISA \
    "Lightweight Structure-Aware Attention for Visual Understanding (Kwon et al., 2022), arXiv:2211.16289"
#define PAPER_METAFORMER "MetaFormer Baselines for Vision (Yu et al., 2022), arXiv:2210.13452"
#define PAPER_MVITV2 \
    "MViTv2: Improved Multiscale Vision Transformers for Classification and Detection (Li et al., 2021), " \
    "arXiv:2112.01526"
#define PAPER_NYSTROM \
    "Nystromformer: A Nystrom-Based Algorithm for Approximating Self-Attention (Xiong et al., 2021), arXiv:2102.03902"
#define PAPER_PERFORMER "Rethinking Attention with Performers (Choromanski et al., 2020), arXiv:2009.14794"
#define PAPER_PERMUTE "PermuteFormer: Efficient Relative Position Encoding for Long Sequences (Chen, 2021), arXiv:2109.02377"
#define PAPER_PVT \
    "Pyramid Vision Transformer: A Versatile Backbone for Dense Prediction without Convolutions (Wang et al., 2021), " \
    "arXiv:2102.12122; PVT v2: Improved Baselines with Pyramid Vision Transformer (Wang et al., 2021), arXiv:2106.13797"
#define PAPER_RFA "Random Feature Attention (Peng et al., 2021), arXiv:2103.02143"
#define PAPER_RIPPLE \
    "Ripple Attention for Visual Perception with Sub-quadratic Complexity (Zheng et al., 2021), arXiv:2110.02453"
#define PAPER_ROPE \
    "RoFormer: Enhanced Transformer with Rotary Position Embedding (Su et al., 2021), arXiv:2104.09864"
#define PAPER_RSA \
    "Relational Self-Attention: What's Missing in Attention for Video Understanding (Kim et al., 2021), arXiv:2111.01673"
#define PAPER_SOFT "SOFT: Softmax-free Transformer with Linear Complexity (Lu et al., 2021), arXiv:2110.11945"
#define PAPER_SPARSE "Generating Long Sequences with Sparse Transformers (Child et al., 2019), arXiv:1904.10509"
#define PAPER_SPE \
    "Relative Positional Encoding for Transformers with Linear Complexity (Liutkus et al., 2021), arXiv:2105.08399"
#define PAPER_SWIN \
    "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows (Liu et al., 2021), arXiv:2103.14030"
#define PAPER_T2R "Finetuning Pretrained Transformers into RNNs (Kasai et al., 2021), arXiv:2103.13076"
#define PAPER_UNIFORMER \
    "UniFormer: Unifying Convolution and Self-attention for Visual Recognition (Li et al., 2022), arXiv:2201.09450"

#endif
