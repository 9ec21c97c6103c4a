"""Operations on whole columns of values, and the compiled kernels (``*_kernel``) below them."""
