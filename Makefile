# Short names for what CMake does. `make run`, `make serve`, `make test`, `make install` and `make deb` work on a fresh machine with
# gcc and make.

PROMPT ?= What is sluice?
MODEL ?= mini
TOKENS ?= 300
PREFIX ?= /usr/local

.PHONY: all run serve test install uninstall deb clean packages

all: packages
	@cmake --preset release -DCMAKE_INSTALL_PREFIX="$(PREFIX)" >build-release.log 2>&1 || { cat build-release.log; exit 1; }
	@rm -f build-release.log
	@cmake --build --preset release

packages:
	@tools/install-packages

# A question for the built-in model, or for another one: make run PROMPT="..." MODEL=path
run: all
	@build/release/sluice run -m "$(MODEL)" -p "$(PROMPT)" -n $(TOKENS) --temp 0

# A server on http://127.0.0.1:8080: make serve, make serve MODEL=path
serve: all
	@build/release/sluice serve -m "$(MODEL)"

test: all
	@ctest --preset release -j 2

install: all
	@cmake --install build/release

# What the last `make install` with this PREFIX wrote
uninstall:
	@cmake/uninstall.sh "$(PREFIX)"

# Debian packages in build/deb. CUDA=OFF leaves the CUDA module out where nvcc is; COMMIT names the sources where git does not.
deb:
	@tools/install-packages --deb
	@deploy/debian/build $(if $(filter OFF,$(CUDA)),--no-cuda) $(if $(COMMIT),--commit "$(COMMIT)") build/deb

clean:
	rm -rf build
