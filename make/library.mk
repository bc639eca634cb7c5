# make library: libvit, the models in a C program (library/vit.h).  It contains the objects from the archive of the
# programs that library/vit.c needs, and exports only vit_*.
.PHONY: library
all: $(if $(filter 0,$(SANITIZE)),library)

SONAME := libvit.so.$(firstword $(subst ., ,$(VERSION)))
# Whether the compiler has a C++ part, without which an exception of oneDNN ends the process.
CATCHES := $(if $(filter 1,$(ONEDNN)),$(shell printf '\043include <new>\n' | $(CC) $(CPPFLAGS) -x c++ -fsyntax-only - 2>/dev/null && echo 1))
LIBRARY_OBJECTS := $(addprefix $(BUILD)/library/,vit.o scope.o collective.o exceptions$(if $(CATCHES),,_none).o)
# Sanitized code keeps unused sections, and with them a reference to main, which is in the program that uses the
# library. The allocations of the library's own code go through library/scope.c.
WRAPPED := $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc aligned_alloc strdup free)
# Not needed to classify images: processes, sound, config files, checksums.
LIBRARY_LIBRARIES = $(filter-out $(MPI_LIBRARIES) $(SOUND_LIBRARIES) -lxxhash,$(LIBRARIES)) $(if $(CATCHES),-lstdc++)

# The flags of C, but for the standard and the warnings that C++ does not have.
$(BUILD)/library/exceptions.o: library/exceptions.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(filter-out -std=gnu11 -Wstrict-prototypes -Wmissing-prototypes,$(FLAGS)) -x c++ -std=c++11 -MMD -MP -c $< -o $@

# Sums over ranks for a single process, without MPI.
$(BUILD)/library/collective.o: kernels/device/collective.c $(BUILD)/flags
	@mkdir -p $(@D)
	@$(CC) $(FLAGS) -UVIT_MPI -MMD -MP -c $< -o $@

# The library has one set of instructions.  For processors with AVX-512 there is a second one in a portable build, which
# make install puts where glibc's loader looks first.
library: $(BUILD)/libvit.so $(BUILD)/libvit.a $(BUILD)/vit.pc $(filter variant-v4,$(VARIANTS:%=variant-%))

$(BUILD)/$(SONAME): $(LIBRARY_OBJECTS) $(BUILD)/libtrain.a library/vit.map make/library.mk
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=library/vit.map $(if $(filter 0,$(SANITIZE)),-Wl$(comma)--no-undefined) -Wl,--gc-sections \
		-Wl,--as-needed $(WRAPPED) $(LIBRARY_OBJECTS) $(BUILD)/libtrain.a -o $@ $(LIBRARY_LIBRARIES)
$(BUILD)/libvit.so: $(BUILD)/$(SONAME)
	@ln -sf $(SONAME) $@

# One object whose only global symbols are those of vit.h, without what these do not need, such as MPI.
open := (
API := $(shell sed -n 's/^VIT_API.*\(vit_[a-z_]*\)$(open).*/\1/p' library/vit.h)
$(BUILD)/libvit.a: $(LIBRARY_OBJECTS) $(BUILD)/libtrain.a make/library.mk
	@$(CC) -r -nostdlib -Wl,--gc-sections $(API:%=-Wl$(comma)-u$(comma)%) $(WRAPPED) $(filter-out %.mk,$^) -o $(BUILD)/library/all.o
	@$(OBJCOPY) $(API:%=--keep-global-symbol=%) $(BUILD)/library/all.o
	@rm -f $@
	@ar rcs $@ $(BUILD)/library/all.o

$(BUILD)/vit.pc: library/vit.pc.in make/library.mk FORCE
	@sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBRARIES@|$(filter -L%,$(LDFLAGS)) $(LIBRARY_LIBRARIES) -fopenmp|' $< > $@
