# The agent that installs extensions, with helm beside it: two static programs. An image of its own, so that the tunnel's
# stays small. Built in the folder that `docker/build context extension-manager` makes, for the architecture of the
# machine that built the programs.
FROM scratch
COPY etc/nsswitch.conf /etc/nsswitch.conf
COPY helm /helm
COPY towline-agent /towline-agent
USER 65532:65532
ENTRYPOINT ["/towline-agent"]
CMD ["run", "--config", "/etc/towline/agent.toml"]
