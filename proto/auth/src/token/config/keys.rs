//! What `[[issuers]]` may hold, for the references of both programs' settings files.

use daemon::settings::reference::Key;

/// The keys of [`super::RawIssuer`].
pub const ISSUER_KEYS: &[Key] = &[
    Key::required("name", "\"staff\"", "Its name in logs, audit and grants: 1 to 64 of a-z A-Z 0-9 - _ . Text."),
    Key::required(
        "url",
        "\"https://login.example.org/realms/staff\"",
        "`iss`, compared byte for byte; discovery is read below it. Text.",
    ),
    Key::default("kind", "\"oidc\"", "`oidc`, or `entra` with Microsoft Entra ID's claims."),
    Key::default(
        "audiences",
        "[]",
        "Accepted `aud` values, in addition to the cluster's own audience. One that several clusters share lets a token presented at one of them be used at the others. List of texts.",
    ),
    Key::default(
        "api_audiences",
        "[]",
        "Accepted `aud` values at the gateway's resource API, in addition to its URL; agents do not use it. One that is in `audiences` too lets a cluster's operator use at the API what is presented to the cluster. List of texts.",
    ),
    Key::default(
        "authorized_parties",
        "[]",
        "Accepted `azp`; where there are some, `azp` must be there. List of texts.",
    ),
    Key::default("algorithms", "[\"RS256\", \"ES256\"]", "Accepted `alg`. List of texts."),
    Key::example(
        "ca_file",
        "\"issuer-ca.crt\"",
        "PEM file of the authorities of discovery and key set; without it what the machine trusts. Path.",
    ),
    Key::example("keys_file", "\"keys.json\"", "A JWKS file instead of discovery: these keys and no others. Path."),
    Key::example(
        "pinned_keys_file",
        "\"pinned.json\"",
        "A JWKS file of keys that are trusted from the start; keys found by discovery are accepted only if one of these vouches for them, directly or through others. Path.",
    ),
    Key::example(
        "jwks_url",
        "\"https://login.example.org/keys\"",
        "The key set's address, instead of what discovery says. Text.",
    ),
    Key::default(
        "allow_http_loopback",
        "false",
        "Whether `http://` is allowed for an issuer on a loopback address. True or false.",
    ),
    Key::default(
        "keys_max_age",
        "\"24h\"",
        "How long keys are used while the issuer cannot be reached. Duration up to 30d.",
    ),
    Key::example(
        "username_claim",
        "\"sub\"",
        "The claim with the user name; without it `sub`, and of `entra` `upn`, or `oid` where there is none. Text.",
    ),
    Key::example(
        "username_prefix",
        "\"staff:\"",
        "What user names begin with; without it nothing. Among several issuers no prefix may begin with another one, and only the gateway's own issuer may have none; two with the same prefix must both say so. Text.",
    ),
    Key::default("groups_claim", "\"groups\"", "The claim with the groups; empty: no groups are read. Text."),
    Key::example(
        "groups_prefix",
        "\"staff:\"",
        "What group names begin with; without it nothing. The rules are those of username_prefix. Text.",
    ),
    Key::default(
        "uid_claim",
        "\"sub\"",
        "The claim for `Impersonate-Uid`: a user name may be given to somebody else one day, an id is not; empty: no uid is sent. Text.",
    ),
    Key::default(
        "extra",
        "{}",
        "Extra key to claim, such as { department = \"dept\" }; of `entra` also oid = \"oid\". Table of texts.",
    ),
    Key::default(
        "required_claims",
        "{}",
        "Claims that must have this text, or one of these, or contain it in a list, such as { tid = \"...\" }. Table of texts or lists.",
    ),
    Key::default("clock_skew", "\"30s\"", "By how much clocks may differ. Duration up to 10m."),
    Key::default("pop", "\"allowed\"", "Proof of possession: `off`, `allowed` or `required`."),
    Key::default("pop_validity", "\"15m\"", "How old a proof may be. Duration up to 24h."),
    Key::default(
        "tokens",
        "\"any\"",
        "Which tokens are taken: `any`, `access` or `id`; the audience decides with `any`.",
    ),
    Key::default(
        "allow_reserved",
        "[]",
        "Resulting names beginning with `system:` that this issuer may give, exactly. List of texts.",
    ),
];
