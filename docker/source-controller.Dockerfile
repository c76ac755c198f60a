# Flux's source-controller: one static program and the public authorities. Built in the folder that
# `docker/build context source-controller` makes, for the architecture of the machine that built the program.
FROM scratch
COPY etc/nsswitch.conf /etc/nsswitch.conf
COPY etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY licences /licences
COPY source-controller /source-controller
USER 65534:65534
ENTRYPOINT ["/source-controller"]
