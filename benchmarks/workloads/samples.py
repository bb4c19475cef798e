"""A small file of each source of workloads that is text, as the programs that write them do."""

from __future__ import annotations

from typing import Final

TUNABLEOP: Final = """\
Validator,PT_VERSION,2.11.0
GemmTunableOp_BFloat16_TN,tn_1024_256_512_ld_512_512_1024,Default,0.00776416
GemmAndBiasTunableOp_BFloat16_TN,tn_1024_256_512_ld_512_512_1024,Default,0.00866528
GemmStridedBatchedTunableOp_BFloat16_TN,tn_1024_256_512_B_4_ld_512_512_1024,Default,0.0081056
GemmTunableOp_float_NN,nn_64_32_16
ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_12288_2048_ld_2048_2048_64_rw_1_bias_None
"""
DESC: Final = "[type=R_16BF rows={} cols={} ld={}{}]"
HEAD: Final = "[2026-11-23 00:49:16][cublasLt][692]"
CUBLASLT: Final = (
    f"{HEAD}[Api][cublasLtMatmul] A=0X7F B=0X7F\n"
    f"{HEAD}[Trace][cublasLtMatmul] A=0X7F Adesc={DESC.format(1024, 512, 1024, '')} B=0X7F "
    f"Bdesc={DESC.format(512, 256, 512, '')} C=0X7F Cdesc={DESC.format(1024, 256, 1024, '')} D=0X7F "
    f"Ddesc={DESC.format(1024, 256, 1024, '')} computeDesc=[computeType=COMPUTE_32F scaleType=R_32F "
    "epilogue=EPILOGUE_BIAS biasPointer=0x7f] algo=[algoId=66 tile=MATMUL_TILE_64x32 stages=MATMUL_STAGES_64xAUTO] "
    "workSpace=0X7F beta=0 outOfPlace=0 stream=0X0\n"
    f"{HEAD}[Trace][cublasLtMatmul] Adesc={DESC.format(512, 1024, 512, ' batchCount=3')} "
    f"Bdesc={DESC.format(512, 256, 512, ' batchCount=3')} Ddesc={DESC.format(1024, 256, 1024, ' batchCount=3')} "
    "computeDesc=[computeType=COMPUTE_32F transa=OP_T]\n"
)
AITER: Final = """\
gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw
gfx950,256,16,4096,7168,False,torch.bfloat16,torch.bfloat16,False,False,hipblaslt,42,0,12.5,slow_one,0,1,1
gfx950,256,16,4096,7168,False,torch.bfloat16,torch.bfloat16,False,False,asm,43,0,10.0,Cijk_Alik,0,1,1
gfx950,256,16,4096,7168,False,torch.float8_e4m3fnuz,torch.bfloat16,False,False,asm,43,0,10.0,Cijk_Alik,0,1,1
"""
CUTLASS: Final = """\
Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,D,alpha,beta,batch_count,Runtime
1,CUTLASS,gemm,wrong,incorrect,success,universal,1024,512,256,f16:column,f16:row,f16:column,f16:column,1,0,1,0.1
1,CUTLASS,gemm,quick,passed,success,universal,1024,512,256,f16:column,f16:row,f16:column,f16:column,1,0,1,0.25
1,CUTLASS,gemm,slow,passed,success,universal,1024,512,256,f16:column,f16:row,f16:column,f16:column,1,0,1,0.5
2,CUTLASS,gemm,rows,passed,success,universal,96,80,64,f32:row,f32:column,f32:row,f32:row,1,0,2,0.125
"""
_TYPES: Final = "a_type: bf16_r, b_type: bf16_r, c_type: bf16_r, d_type: bf16_r"
HIPBLASLT: Final = (
    "- { function: matmul, M: 1024, N: 256, K: 512, lda: 512, transA: T, transB: N, batch_count: 2, "
    f"{_TYPES}, compute_type: f32_r }}\n"
    "hipblaslt-bench --api_method c -m 64 -n 32 -k 16 --transA N --transB T --alpha -1 --precision f32_r "
    "--compute_type xf32_r\n"
)
SHAPES: Final = (
    "\N{BYTE ORDER MARK}# mine\n512x512x512\r\n4096x16x4096 x 8 bf16 nt * 12  # many\n512 * 2\n64x64x64 tf32\n"
)
