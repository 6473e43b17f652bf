"""Tables of the selectable policies of autocast: the operators that it casts, and the dtypes.

A row is an ATen overload ("mm", "pow.Tensor_Scalar") under the kind of its cast:

    lower_precision_fp   arguments to the region's dtype
    fp32                 arguments to float32
    fp32_set_opt_dtype   `dtype=float32` where the program gives none
    fp32_append_dtype    the overload that takes a dtype, with float32
    promote              arguments to the widest dtype among them, of float32 and the region's
    banned               refused: the operator is unsafe in low precision

`cuda` and `cpu` are PyTorch's own (2.9 to 2.15: a row may be of an operator that a release has not), which
`tests/precision/test_tables.py` compares with the installed one; `xla` is that of torch_xla's `csrc/autocast_mode.cpp`.
An operator without a row runs in the dtypes that it is given.
"""

from __future__ import annotations

LOWER = "lower_precision_fp"
FP32 = "fp32"
SET_DTYPE = "fp32_set_opt_dtype"
APPEND_DTYPE = "fp32_append_dtype"
PROMOTE = "promote"
BANNED = "banned"
KINDS = (LOWER, FP32, SET_DTYPE, APPEND_DTYPE, PROMOTE, BANNED)

Table = dict[str, str]  # overload -> kind


def _table(**rows: str) -> Table:
    return {name: kind for kind, names in rows.items() for name in names.split()}


CUDA = _table(
    lower_precision_fp="""
        addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d
        conv_transpose2d.input conv_transpose3d.input _convolution convolution _convolution.deprecated cudnn_convolution
        cudnn_convolution_transpose einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul mm mv prelu
        rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention _scaled_dot_product_flash_attention
        _thnn_fused_gru_cell _thnn_fused_lstm_cell
    """,
    fp32="""
        acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity dist erfinv exp
        expm1 frobenius_norm.dim group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm
        linalg_matrix_sqrth log log10 log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss
        multilabel_margin_loss native_layer_norm nll_loss
        nll_loss2d nuclear_norm nuclear_norm.dim pdist poisson_nll_loss pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor
        reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softplus tan triplet_margin_loss
        upsample_bicubic2d _upsample_bicubic2d_aa upsample_bilinear2d _upsample_bilinear2d_aa upsample_linear1d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d upsample_trilinear3d
    """,
    fp32_set_opt_dtype="""
        cumprod cumsum linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log_softmax.int prod
        prod.dim_int softmax.int sum sum.dim_IntList
    """,
    fp32_append_dtype="norm.Scalar norm.ScalarOpt_dim",
    promote="""
        addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
    """,
    banned="binary_cross_entropy",
)
CPU = _table(
    lower_precision_fp="""
        addbmm addmm _addmm_activation baddbmm bmm conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding
        conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input _convolution.deprecated linalg_vecdot
        linear matmul mkldnn_rnn_layer mm _native_multi_head_attention prelu scaled_dot_product_attention
    """,
    fp32="""
        adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d binary_cross_entropy binary_cross_entropy_with_logits cdist
        cholesky cholesky_inverse cholesky_solve cosine_embedding_loss cross_entropy_loss ctc_loss.IntList
        ctc_loss.Tensor fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn
        fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn fractional_max_pool2d
        fractional_max_pool3d geqrf grid_sampler grid_sampler_2d _grid_sampler_2d_cpu_fallback grid_sampler_3d
        hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky linalg_cholesky_ex linalg_cond
        linalg_cond.p_str linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv
        linalg_inv_ex linalg_lstsq linalg_matrix_rank linalg_matrix_rank.atol_rtol_float
        linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.tol_tensor linalg_matrix_sqrth linalg_qr
        linalg_solve linalg_svd
        linalg_svdvals linalg_tensorinv linalg_tensorsolve lu_solve _lu_with_info margin_ranking_loss max_pool3d
        max_unpool2d max_unpool3d mse_loss multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward
        nanquantile nanquantile.scalar nll_loss nll_loss2d orgqr ormqr pinverse poisson_nll_loss polar prod prod.dim_int
        qr quantile quantile.scalar reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
        replication_pad3d smooth_l1_loss soft_margin_loss stft stft.center svd trace triangular_solve
        triplet_margin_loss view_as_complex
    """,
    promote="cat index_copy stack",
)
XLA = _table(
    lower_precision_fp="""
        addbmm addmm baddbmm bmm conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding conv_tbc
        conv_transpose1d conv_transpose2d.input conv_transpose3d.input einsum linear matmul max_pool2d mm prelu relu
    """,
    fp32="""
        batch_norm binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky cholesky_inverse cholesky_solve
        cosine_embedding_loss cross_entropy_loss ctc_loss.IntList ctc_loss.Tensor hinge_embedding_loss inverse kl_div
        l1_loss linalg_inv_ex linalg_svd log_softmax.int margin_ranking_loss mse_loss multi_margin_loss
        multilabel_margin_loss multilabel_margin_loss_forward nll_loss nll_loss2d pow.Tensor_Scalar prod prod.dim_int qr
        reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d smooth_l1_loss
        soft_margin_loss _softmax softmax.int svd trace triangular_solve triplet_margin_loss
    """,
    promote="cat index_copy stack",
)

POLICIES: dict[str, Table] = {"cuda": CUDA, "cpu": CPU, "xla": XLA}
# the dtype of a region that names none, as the frameworks have it
DEFAULT_DTYPES = {"cuda": "float16", "cpu": "bfloat16", "xla": "bfloat16"}

UNSAFE = """\
torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.
Many models use a sigmoid layer right before the binary cross entropy layer.
In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits
or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are
safe to autocast."""  # PyTorch's words, for the one banned operator
UNEXPECTED = "Unexpected floating ScalarType in at::autocast::prioritize"  # a third dtype where two are promoted
