# The image of both daemons. The last stage is the default: nothing in it but the static binary.
#
#   docker build -t toolfleet:dev .                          coordinators, and workers whose tools are built in
#   docker build -t toolfleet:dev-shell --target shell .     workers whose tools run commands
#
# The builtin Bash and exec tools run programs of the image they are in, so a worker that serves them needs
# an image with a shell and those programs: start yours from the shell stage, or copy /toolfleet into it.

FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /out/toolfleet ./cmd/toolfleet
# Folders that a process without root can write to; a new volume takes over their owner.
RUN mkdir -p /rootfs/tmp /rootfs/workspace /rootfs/identities

FROM debian:12.12-slim AS shell
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /rootfs/workspace /workspace
COPY --from=build /out/toolfleet /toolfleet
ENV HOME=/tmp
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/toolfleet"]

FROM scratch
LABEL org.opencontainers.image.title="toolfleet" \
      org.opencontainers.image.description="Runs the tool calls of LLM agents on a fleet" \
      org.opencontainers.image.source="https://github.com/toolfleet/toolfleet" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /rootfs/ /
COPY --from=build /out/toolfleet /toolfleet
ENV HOME=/tmp
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/toolfleet"]
