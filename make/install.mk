# make install and make uninstall.
.PHONY: install install-built uninstall

# The scripts that a user of the programs needs; the others build, test and measure in a checkout.
PREFIX ?= /usr/local
# plots.py and safetensors_io.py are modules of the scripts.
SHARED := $(wildcard configs/*/*.ini) $(addprefix scripts/,convert_weights.py fetch_cifar.sh prepare_data.py) \
          $(addprefix scripts/plots/,plot_attention.py plot_model.py plots.py) tests/reference/safetensors_io.py
DOCUMENTS := README.md CHANGELOG.md CONTRIBUTING.md LICENSE examples/classify.c $(wildcard docs/*.md docs/*/*.md docs/*.csv docs/images/*)
SHARE := $(PREFIX)/share/vit.c
# The library for C programs, if the backend has it (make/library.mk).
HWCAPS := lib/glibc-hwcaps/x86-64-v4
LIBRARY_FILES := $(if $(SONAME),lib/$(SONAME) $(HWCAPS)/$(SONAME) lib/libvit.so lib/libvit.a lib/pkgconfig/vit.pc include/vit.h)
# Below PREFIX, whose name may contain spaces.
INSTALLED := $(LIBRARY_FILES) $(PROGRAMS:%=bin/%) $(PROGRAMS:%=share/man/man1/%.1) $(SHARED:%=share/vit.c/%) $(DOCUMENTS:%=share/doc/vit.c/%)

install: $(PROGRAMS:%=$(BUILD)/%) $(if $(SONAME),library)
	@$(MAKE) --no-print-directory install-built

# For another user than the one who builds: nothing is compiled.
install-built:
	@umask 022 && mkdir -p $(foreach f,bin share/man/man1 share/vit.c share/doc/vit.c,"$(DESTDIR)$(PREFIX)/$f")
	@install -m 755 $(PROGRAMS:%=$(BUILD)/%) "$(DESTDIR)$(PREFIX)/bin"
	@pages=$$(mktemp -d) && trap 'rm -rf "$$pages"' EXIT && for program in $(PROGRAMS); do \
		$(BUILD)/$$program --help > "$$pages/$$program.txt" && \
		awk -f scripts/manpage.awk -v version='$(VERSION)' -v share='$(SHARE)' "$$pages/$$program.txt" > "$$pages/$$program.1" || \
		exit 1; done && install -m 644 "$$pages"/*.1 "$(DESTDIR)$(PREFIX)/share/man/man1"
	@$(if $(SONAME),umask 022 && mkdir -p "$(DESTDIR)$(PREFIX)/lib/pkgconfig" "$(DESTDIR)$(PREFIX)/include" && \
		install -m 644 $(BUILD)/$(SONAME) $(BUILD)/libvit.a "$(DESTDIR)$(PREFIX)/lib" && \
		if grep -qE '(^| )v4( |$$)' $(BUILD)/variants; then install -D -m 644 $(BUILD)-v4/$(SONAME) "$(DESTDIR)$(PREFIX)/$(HWCAPS)/$(SONAME)"; \
		else rm -f "$(DESTDIR)$(PREFIX)/$(HWCAPS)/$(SONAME)"; fi && \
		ln -sf $(SONAME) "$(DESTDIR)$(PREFIX)/lib/libvit.so" && install -m 644 library/vit.h "$(DESTDIR)$(PREFIX)/include" && \
		sed 's|^prefix=.*|prefix=$(PREFIX)|' $(BUILD)/vit.pc > "$(DESTDIR)$(PREFIX)/lib/pkgconfig/vit.pc")
	@cp --parents $(SHARED) "$(DESTDIR)$(SHARE)"
	@cp --parents $(DOCUMENTS) "$(DESTDIR)$(PREFIX)/share/doc/vit.c"
	@chmod -R u=rwX,go=rX "$(DESTDIR)$(SHARE)" "$(DESTDIR)$(PREFIX)/share/doc/vit.c"
	@echo "installed in $(DESTDIR)$(PREFIX)"

# Files of others remain, with their folders.
uninstall:
	@rm -f $(foreach f,$(INSTALLED),"$(DESTDIR)$(PREFIX)/$f")
	@for folder in "$(DESTDIR)$(SHARE)" "$(DESTDIR)$(PREFIX)/share/doc/vit.c"; do \
		if [ -d "$$folder" ]; then find "$$folder" -depth -type d -empty -delete; fi; done
	@echo "uninstalled from $(DESTDIR)$(PREFIX)"
