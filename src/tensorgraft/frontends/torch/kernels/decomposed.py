"""Operators that PyTorch's decompositions compute, although a composite of PyTorch's would come before these: one that
makes a result and calls the form with `out=`, or computes part by part.

What has neither a kernel nor a composite is decomposed where it is called (`setup.late_entry`).
"""

DECOMPOSED = """
    _addmm_activation addr addr.out addr_ aminmax count_nonzero diag_embed elu elu_backward
    gelu_backward glu hardshrink hardsigmoid hardsigmoid_backward heaviside huber_loss_backward
    isin.Scalar_Tensor isin.Tensor_Scalar isin.Tensor_Tensor isneginf isposinf lcm leaky_relu_backward linalg_cross
    logaddexp2 logit_backward mish mse_loss nll_loss_backward
    norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype renorm round.decimals
    select_backward sinc smooth_l1_loss smooth_l1_loss_backward softplus
    softplus_backward softshrink special_entr special_log_ndtr special_xlog1py split_with_sizes_copy unbind_copy.int
"""
