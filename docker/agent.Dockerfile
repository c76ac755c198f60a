# The agent: one static program. Built in the folder that `docker/build context agent` makes, for the architecture of
# the machine that built the program.
FROM scratch
COPY etc/nsswitch.conf /etc/nsswitch.conf
COPY towline-agent /towline-agent
USER 65532:65532
ENTRYPOINT ["/towline-agent"]
CMD ["run", "--config", "/etc/towline/agent.toml"]
