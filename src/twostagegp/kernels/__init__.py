"""Covariance functions: the named ones, and any GPyTorch kernel."""

from twostagegp.kernels.base import Kernel as Kernel
from twostagegp.kernels.base import Scalars as Scalars
from twostagegp.kernels.base import Vector as Vector
from twostagegp.kernels.base import inverse_lengthscale_shares as inverse_lengthscale_shares
from twostagegp.kernels.base import is_flexible as is_flexible
from twostagegp.kernels.catalogue import KERNELS as KERNELS
from twostagegp.kernels.make import kernel_list as kernel_list
from twostagegp.kernels.make import make_kernel as make_kernel
from twostagegp.kernels.plus_constant import PlusConstant as PlusConstant
from twostagegp.kernels.stationary import NamedKernel as NamedKernel
from twostagegp.kernels.wrapped import WrappedKernel as WrappedKernel
