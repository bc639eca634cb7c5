# The CPU backend: kernels/*/*.c, with oneDNN or without it, and programs that contain several variants.
ONEDNN ?= $(call headers,dnnl.h)
SOURCES += $(filter-out kernels/launcher/% $(if $(filter 1,$(ONEDNN)),%/onednn_none.c %_own.c,%/onednn.c %_onednn.c), \
             $(wildcard kernels/*/*.c))
LIBRARIES += $(if $(filter 1,$(ONEDNN)),-ldnnl)
LINK_FLAGS = $(FLAGS) $(LDFLAGS)

report-device:
	@echo "vit.c for the CPU, $(CC), $(or $(MARCH),the compiler's own choice of processor)$(if $(VARIANTS), (also: $(VARIANTS)))"
	$(call optional,$(ONEDNN),oneDNN,matrix products and convolutions in plain C; apt-get install libdnnl-dev)

# == Variants ========================================================================================================

# A program for a CPU is a launcher and one or more variants: all of the program's objects, compiled for one set of
# instructions and one precision, in one relocatable object without global symbols.  The launcher finds them by a section
# of pointers (kernels/device/variant.h), in the order in which they are linked, newest instructions first.
OBJCOPY ?= $(shell $(CC) -print-prog-name=objcopy)
# The variants other than the one in $(BUILD); each is built by a separate make in $(BUILD)-NAME.
ifeq ($(origin VARIANTS)$(SANITIZE)$(PRECISION)$(if $(X86),x86),undefined0FP32x86)
ifeq ($(ARCH),portable)
VARIANTS := v4-bf16 v4
else
VARIANTS := $(if $(shell $(CC) $(MARCH) -dM -E -x c /dev/null 2>/dev/null | grep AVX512BF16__),bf16)
endif
endif
SETTINGS_v4 := ARCH=x86-64-v4 PRECISION=FP32
SETTINGS_v4-bf16 := ARCH="x86-64-v4 -mavx512bf16" PRECISION=BF16
SETTINGS_bf16 := PRECISION=BF16
ONCE := $(filter-out %bf16,$(VARIANTS)) # pack_dataset has no precision

define variant
.PHONY: variant-$1
variant-$1:
	@$$(MAKE) -s --no-print-directory VARIANTS= BUILD=$(BUILD)-$1 $(SETTINGS_$1) $(PROGRAMS:%=$(BUILD)-$1/%.variant) \
		$(if $(filter v4,$1),$(BUILD)-$1/$$(SONAME))
$(PROGRAMS:%=$(BUILD)-$1/%.variant): variant-$1 ;
endef
$(foreach v,$(VARIANTS),$(eval $(call variant,$v)))

$(BUILD)/%.variant: $(BUILD)/%.o $(BUILD)/libtrain.a
	@$(CC) -r -nostdlib -Wl,-u,kernels_choose $^ -o $@.all
	@$(OBJCOPY) --keep-global-symbol=none $@.all $@
	@rm $@.all

# Compiled for the oldest processor, because it must run where no variant can.
LAUNCHER := $(BUILD)/launcher/kernels/launcher/launcher.o $(BUILD)/launcher/kernels/device/processor.o
$(BUILD)/launcher/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "CC $< (launcher)"
	@$(CC) $(filter-out $(MARCH),$(FLAGS)) $(if $(X86),-march=x86-64) -O2 -MMD -MP -c $< -o $@

$(BUILD)/variants: FORCE
	@mkdir -p $(@D)
	@echo '$(VARIANTS)' | cmp -s - $@ || echo '$(VARIANTS)' > $@

$(PROGRAMS:%=$(BUILD)/%): $(BUILD)/%: $(LAUNCHER) $(BUILD)/%.variant $(BUILD)/variants
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $(LAUNCHER) $(foreach v,$(if $(filter pack_%,$*),$(ONCE),$(VARIANTS)),$(BUILD)-$v/$*.variant) $@.variant \
		-o $@ $(LIBRARIES)
$(filter $(BUILD)/train_%,$(PROGRAMS:%=$(BUILD)/%)): $(BUILD)/%: $(foreach v,$(VARIANTS),$(BUILD)-$v/%.variant)
$(filter $(BUILD)/pack_%,$(PROGRAMS:%=$(BUILD)/%)): $(BUILD)/%: $(foreach v,$(ONCE),$(BUILD)-$v/%.variant)

# == A test that makes its own videos, for which it is linked with FFmpeg's libraries =================================

ifeq ($(VIDEO),1)
$(BUILD)/tests/test_video: private LIBRARIES += $(VIDEO_LIBRARIES)
else
$(BUILD)/tests/test_video: $(BUILD)/flags
	@mkdir -p $(@D)
	@printf '#!/bin/sh\necho 1..1\necho "ok 1 # SKIP no FFmpeg in this build"\n' > $@
	@chmod +x $@
endif
