# Short names for what CMake does. `make run`, `make test` and `make install` work on a fresh machine with gcc and make.

PROMPT ?= Once upon a time
MODEL ?= ../shared/models/stories260K.gguf
TOKENS ?= 200
PREFIX ?= /usr/local

.PHONY: all run test install clean packages

all: packages
	@cmake --preset release -DCMAKE_INSTALL_PREFIX="$(PREFIX)" >build-release.log 2>&1 || { cat build-release.log; exit 1; }
	@rm -f build-release.log
	@cmake --build --preset release

packages:
	@tools/install-packages

run: all
	@test -e "$(MODEL)" || { echo "no model at $(MODEL): name one with  make run MODEL=path" >&2; exit 1; }
	@build/release/sluice run -m "$(MODEL)" -p "$(PROMPT)" -n $(TOKENS) --temp 0

test: all
	@ctest --preset release -j 2

install: all
	@cmake --install build/release

clean:
	rm -rf build
