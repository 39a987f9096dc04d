# A clone becomes an image: docker build -t tollgate .
#
#   docker run -v ./tollgate.toml:/etc/tollgate/tollgate.toml:ro -v tollgate:/var/lib/tollgate -p 8080:8080 \
#       -e OPENAI_API_KEY tollgate
#   docker exec CONTAINER /tollgate keys issue --name first
#
# The configuration says where the ledger is and that clients come from outside:
#   server.listen = ":8080" and store.url = "sqlite:/var/lib/tollgate/tollgate.db"
# Releases are packed by scripts/Containerfile, from a binary that is there already.

# Alpine's toolchain links statically, so that what it makes needs no other file.
FROM docker.io/library/rust:1-alpine AS build
RUN apk add --no-cache gcc musl-dev
WORKDIR /src
COPY . .
RUN cargo build --release --locked && install -d -m 700 /state/tollgate

FROM scratch
COPY --from=build /src/target/release/tollgate /tollgate
# A number, since there is no list of users. A new volume takes owner and mode of the folder.
COPY --from=build --chown=65532:65532 /state/ /var/lib/
USER 65532:65532
WORKDIR /var/lib/tollgate
EXPOSE 8080
STOPSIGNAL SIGTERM
# It asks the admin listener that the configuration names.
HEALTHCHECK --interval=10s --timeout=5s CMD ["/tollgate", "ready"]
ENTRYPOINT ["/tollgate"]
CMD ["serve"]
