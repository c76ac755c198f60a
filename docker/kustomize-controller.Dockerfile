# Flux's kustomize-controller: one static program and the public authorities. Built in the folder that
# `docker/build context kustomize-controller` makes, for the architecture of the machine that built the program.
FROM scratch
COPY etc/nsswitch.conf /etc/nsswitch.conf
COPY etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY licences /licences
COPY kustomize-controller /kustomize-controller
USER 65534:65534
ENTRYPOINT ["/kustomize-controller"]
