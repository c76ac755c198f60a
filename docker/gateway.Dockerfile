# The gateway: one static program. Built in the folder that `docker/build context gateway` makes, for the architecture
# of the machine that built the program.
FROM scratch
COPY etc/nsswitch.conf /etc/nsswitch.conf
COPY towline-gateway /towline-gateway
USER 65532:65532
ENTRYPOINT ["/towline-gateway"]
CMD ["--config", "/etc/towline/gateway.toml"]
