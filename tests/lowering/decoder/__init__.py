"""A decoder of what the hardware will do with emitted numbers, written from NVIDIA's tables alone.

It imports nothing of `lowering` or `cake_ir`, so that a shared misunderstanding cannot hide. Sources are named per
module: PTX ISA (matrix descriptors, instruction descriptor, mbarrier, tensor memory), CUDA driver API (tensor maps),
CUDA programming guide (swizzle).
"""
