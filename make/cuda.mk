# The CUDA backend: kernels/*/*.cu by nvcc.
#   CUDA_HOME, CUDNN_HOME, NCCL_HOME     where the toolkit and the libraries are
#   CUDA_ARCH="sm_80 sm_90"              the GPUs; default: this machine's, otherwise Ampere, Hopper and later ones
#   CUDNN=0 CUFFT=0 NCCL=0               without an installed library
#   NVCC_LINES=      programs a third smaller, without the lines of the source for profilers and compute-sanitizer
# To copy a program to another machine, build it with ARCH=x86-64-v3 MPI=0 NCCL=0: train_vit then needs the driver,
# libcublasLt, libcufft and libcudnn, in its folder or in LD_LIBRARY_PATH.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell readlink -f "$$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"))
NVCC := $(CUDA_HOME)/bin/nvcc
GPU_ARCH := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
              sed -n 's/^\([0-9]*\)\.\([0-9]*\)$$/\1\2/p' | head -1)
CUDA_ARCH ?= $(if $(GPU_ARCH),sm_$(GPU_ARCH),sm_80 sm_90)
GENCODE := $(foreach a,$(CUDA_ARCH),-gencode arch=$(a:sm_%=compute_%),code=$(a)) \
           $(if $(GPU_ARCH),,-gencode arch=compute_90,code=compute_90)
NVCC_LINES ?= -lineinfo
NVCC_FLAGS := -std=c++17 -O3 $(GENCODE) --expt-relaxed-constexpr $(NVCC_LINES) $(CPPFLAGS_ALL) \
              -Xcompiler -Wall,-Wextra $(if $(filter 1,$(WERROR)),-Werror all-warnings) $(NVCCFLAGS)
# The longest first: one of them takes as long as ten others.
CU_SOURCES := $(shell ls -S kernels/*/*.cu) tests/emulate/check_values.cu
LINK := $(NVCC)

# The static library if there is one, so that another machine needs few libraries.
archive = $(if $(filter /%,$(shell $(CC) -print-file-name=lib$(1).a)),-l:lib$(1).a,-l$(1))
# A library in one of these folders; pip's packages have only the file with the version, such as libcublasLt.so.13.
numbered = $(addprefix -l:,$(notdir $(firstword $(wildcard $(addsuffix /lib$(1).so.[0-9]*,$(2))))))
shared = $(or $(if $(wildcard $(addsuffix /lib$(1).so,$(2))),-l$(1)),$(call numbered,$(1),$(2)),-l$(1))
CUDA_LIBRARIES := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/targets/*/lib $(CUDA_HOME)/lib))
LIBRARIES := $(foreach l,inih jansson jpeg $(WEBP_LIBRARIES:-l%=%) xxhash,$(call archive,$l)) \
             $(SOUND_LIBRARIES) $(filter-out -Wl%,$(MPI_LIBRARIES)) $(call shared,cublasLt,$(CUDA_LIBRARIES)) $(call archive,gomp) -lm -ldl -lpthread
LINK_FLAGS := $(GENCODE) -cudart static $(addprefix -L,$(CUDA_LIBRARIES)) \
              -Xlinker --as-needed -Xlinker -rpath='$$ORIGIN$(addprefix :,$(CUDA_LIBRARIES))' -Xcompiler -static-libgcc,-static-libstdc++ \
              $(filter -L%,$(LDFLAGS)) # nvcc does not take -Wl

# cuDNN, for the convolutions of the detector's backbone and of hybrid stems: in CUDNN_HOME, otherwise in the toolkit.
CUDNN_HOME ?= $(CUDA_HOME)
CUDNN ?= $(if $(wildcard $(CUDNN_HOME)/include/cudnn.h /usr/include/cudnn.h),1,0)
ifeq ($(CUDNN),1)
NVCC_FLAGS += -DVIT_CUDNN -I$(CUDNN_HOME)/include
CUDNN_LIBRARIES := $(wildcard $(CUDNN_HOME)/lib64 $(CUDNN_HOME)/lib)
LIBRARIES += $(addprefix -L,$(CUDNN_LIBRARIES)) $(call shared,cudnn,$(CUDNN_LIBRARIES))
endif

# cuFFT, for lisa and gf.
CUFFT ?= $(if $(wildcard $(CUDA_HOME)/include/cufft.h),1,0)
ifeq ($(CUFFT),1)
NVCC_FLAGS += -DVIT_CUFFT
LIBRARIES += $(call shared,cufft,$(CUDA_LIBRARIES))
endif

# NCCL, for several GPUs: in NCCL_HOME, otherwise in the toolkit.  MPI starts the ranks, so one without the other has no
# use.
NCCL_HOME ?= $(CUDA_HOME)
NCCL ?= $(if $(wildcard $(NCCL_HOME)/include/nccl.h /usr/include/nccl.h),$(MPI),0)
ifeq ($(NCCL),1)
NVCC_FLAGS += -DVIT_NCCL -I$(NCCL_HOME)/include
LIBRARIES += -L$(NCCL_HOME)/lib $(call shared,nccl,$(NCCL_HOME)/lib)
endif

report-device:
	@echo "vit.c for CUDA, $(PRECISION), $(or $(shell $(NVCC) --version 2>/dev/null | \
		sed -n 's/.*release \([^,]*\),.*/nvcc \1/p'),no nvcc) in $(CUDA_HOME), $(CUDA_ARCH)"
	$(if $(wildcard $(CUDA_HOME)/include/cublasLt.h),@echo "  found    cuBLASLt",@echo \
		"  MISSING  cuBLASLt: the matrix products; part of the CUDA toolkit (CUDA_HOME)")
	$(call optional,$(NCCL),NCCL,one GPU only; NCCL_HOME says where it is; it needs MPI)
	$(call optional,$(CUDNN),cuDNN,the convolutions of detectors and hybrid stems take plain kernels and are slow; \
		CUDNN_HOME says where it is)
	$(call optional,$(CUFFT),cuFFT,lisa and gf transform in shared memory alone; part of the CUDA toolkit)

$(BUILD)/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "NVCC $<"
	@$(NVCC) $(NVCC_FLAGS) -MMD -MP -c $< -o $@

$(PROGRAMS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/%.o $(BUILD)/libtrain.a
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $^ -o $@ $(LIBRARIES)
