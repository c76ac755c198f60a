//! Extensions in a cluster (docs/features.md E2): whether their agent is there, and which catalogue it trusts. The
//! keys are pinned when that is decided, and never taken from the gateway again by itself: a gateway that is stolen later
//! can name keys of its own, and no cluster takes them.

use std::path::PathBuf;

use agent::config::{self, LockedSetting};
use anyhow::{Context, anyhow};
use catalogue::{index::CatalogueId, key::PublicKey};
use types::agent_api::InstallSettings;

use super::image::split_image;
use crate::{
    commands::names,
    failure::{Failure, Outcome},
    kubernetes::kept::{KeptExtensions, KeptGitops},
    manifests::{ExtensionImage, Gitops, Values},
};

/// Which catalogue is trusted, and for what. What is not typed is as it was, where extensions are on.
#[derive(Debug, clap::Args, Clone, Default)]
pub struct CatalogueArgs {
    /// PEM file of a public key that signs the catalogue of extensions; repeat for more. Without this: the keys that the
    /// gateway's own catalogue names now
    #[arg(long = "catalogue-key", value_name = "FILE", help_heading = "Extensions")]
    pub keys: Vec<PathBuf>,
    /// The only catalogue that is accepted, as `towline catalogue init` names it
    #[arg(long, value_name = "ID", help_heading = "Extensions")]
    pub catalogue_id: Option<CatalogueId>,
    /// The only extension types that may be installed, whatever the gateway asks for; "" for all of the catalogue
    #[arg(long, value_name = "TYPE[,TYPE]", value_delimiter = ',', help_heading = "Extensions")]
    pub allowed_extension_types: Vec<String>,
    /// A setting that the gateway may not give, and what it is; * for every type. Repeat for more; "" for none
    #[arg(long = "locked-setting", value_name = "TYPE:KEY[=VALUE]", value_parser = locked, help_heading = "Extensions")]
    pub locked_settings: Vec<String>,
    /// Registry that charts are pulled from, oci://HOST/PATH; "" for the gateway
    #[arg(long, value_name = "URL", value_parser = |text: &str| or_none(text, config::chart_registry), help_heading = "Extensions")]
    pub chart_registry: Option<String>,
    /// Secret of the agents' namespace that signs in there, of the type kubernetes.io/dockerconfigjson, and with ca.crt
    /// for an authority of one's own; "" for none
    #[arg(long, value_name = "NAME", value_parser = |text: &str| or_none(text, config::secret_name), help_heading = "Extensions")]
    pub registry_secret: Option<String>,
    /// Registry, HOST/PATH, that takes the place of the registry of every image of a chart; "" for none
    #[arg(long, value_name = "HOST", value_parser = |text: &str| or_none(text, config::registry), help_heading = "Extensions")]
    pub local_registry: Option<String>,
    /// The image of extension-manager, REPOSITORY[:TAG] or REPOSITORY@sha256:...
    #[arg(long, value_name = "NAME", value_parser = names::image, help_heading = "Extensions")]
    pub extension_image: Option<String>,
    /// What fluxConfigurations may do.
    #[command(flatten)]
    pub gitops: GitopsArgs,
}

/// What fluxConfigurations of the gateway may do in the cluster, which enforces it. What is not typed is as it was.
#[derive(Debug, clap::Args, Clone, Default, PartialEq, Eq)]
pub struct GitopsArgs {
    /// URL of a source that configurations may use, such as https://git.example.org/team/*; repeat for more; "" for all
    #[arg(long = "gitops-repository", value_name = "URL", help_heading = "Extensions")]
    pub repositories: Vec<String>,
    /// Scope that configurations may have, cluster (as cluster-admin) or namespace (as admin there); repeat for both; ""
    /// for both
    #[arg(long = "gitops-scope", value_name = "SCOPE", value_parser = ["cluster", "namespace", ""], help_heading = "Extensions")]
    pub scopes: Vec<String>,
    /// Namespace that configurations may be in; repeat for more; "" for all
    #[arg(long = "gitops-namespace", value_name = "NAME", value_parser = namespace_or_none, help_heading = "Extensions")]
    pub namespaces: Vec<String>,
}

fn namespace_or_none(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { names::namespace(text) }
}

impl GitopsArgs {
    fn says_which(&self) -> bool {
        *self != Self::default()
    }

    /// Over what was said before.
    fn apply(&self, gitops: &mut Gitops, kept: KeptGitops) {
        for (allowed, typed, kept) in [
            (&mut gitops.allowed_repositories, &self.repositories, kept.repositories),
            (&mut gitops.allowed_scopes, &self.scopes, kept.scopes),
            (&mut gitops.allowed_namespaces, &self.namespaces, kept.namespaces),
        ] {
            *allowed = match typed.as_slice() {
                [] => kept,
                typed => typed.iter().filter(|one| !one.is_empty()).cloned().collect(),
            };
        }
    }
}

/// What may be done there, in words.
fn bounds(gitops: &Gitops) -> String {
    let of = |what: &str, allowed: &[String]| match allowed {
        [] => format!("every {what}"),
        allowed => format!("{what} {}", allowed.join(", ")),
    };
    format!(
        "fluxConfigurations may use {}, {} and {}",
        of("repository", &gitops.allowed_repositories),
        of("scope", &gitops.allowed_scopes),
        of("namespace", &gitops.allowed_namespaces)
    )
}

/// As the agent reads it; the empty text is none at all.
fn locked(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Ok(String::new());
    }
    text.parse::<LockedSetting>().map(|_| text.to_owned())
}

/// As the agent reads it; the empty text takes away what was said before.
fn or_none(text: &str, read: fn(&str) -> Result<String, &'static str>) -> Result<String, &'static str> {
    if text.is_empty() { Ok(String::new()) } else { read(text) }
}

/// What was typed, read.
#[derive(Debug, Default)]
pub struct Typed {
    on: Option<bool>,
    keys: Vec<PublicKey>,
    args: CatalogueArgs,
}

impl Typed {
    /// Reads it; `on`: whether extensions are to be on, if that was typed.
    ///
    /// # Errors
    /// When a file holds no public key, or it cannot be meant.
    pub fn read(on: Option<bool>, args: &CatalogueArgs) -> Outcome<Self> {
        let typed = Self { on, keys: args.keys.iter().map(read_key).collect::<Outcome<_>>()?, args: args.clone() };
        if on == Some(false) && typed.says_which() {
            let error = anyhow!("a catalogue was named, and extensions were turned off");
            return Err(Failure::usage(error).hint("leave out one of the two"));
        }
        Ok(typed)
    }

    /// Whether nothing of this was typed.
    pub fn is_nothing(&self) -> bool {
        self.on.is_none() && !self.says_which()
    }

    fn says_which(&self) -> bool {
        let CatalogueArgs {
            keys,
            catalogue_id,
            allowed_extension_types,
            locked_settings,
            chart_registry,
            registry_secret,
            local_registry,
            extension_image,
            gitops,
        } = &self.args;
        let places = [chart_registry, registry_secret, local_registry].iter().any(|one| one.is_some());
        let bounds =
            !allowed_extension_types.is_empty() || !locked_settings.is_empty() || places || gitops.says_which();
        !keys.is_empty() || catalogue_id.is_some() || bounds || extension_image.is_some()
    }

    /// Over what the extension-manager that is there was told before; returns what to say of it.
    ///
    /// # Errors
    /// When nobody says which keys to trust.
    pub fn apply(
        &self,
        values: &mut Values,
        kept: Option<KeptExtensions>,
        settings: &InstallSettings,
    ) -> Outcome<Vec<String>> {
        if !self.on.unwrap_or(kept.is_some()) {
            if self.says_which() {
                return Err(Failure::usage(anyhow!("a catalogue was named for a cluster whose extensions are off"))
                    .hint("turn them on: towline connect --extensions"));
            }
            return Ok(Vec::new());
        }
        let source = self.pin(values, kept.as_ref(), settings)?;
        let kept = kept.unwrap_or_default();
        let extensions = &mut values.extensions;
        extensions.enabled = true;
        extensions.allowed_types = match self.args.allowed_extension_types.as_slice() {
            [] => kept.allowed_types,
            typed => typed.iter().map(|kind| kind.trim().to_owned()).filter(|kind| !kind.is_empty()).collect(),
        };
        extensions.locked_settings = match self.args.locked_settings.as_slice() {
            [] => kept.locked_settings,
            typed => typed.iter().filter(|one| !one.is_empty()).cloned().collect(),
        };
        let typed = |typed: &Option<String>, kept| typed.clone().unwrap_or(kept);
        extensions.chart_registry = typed(&self.args.chart_registry, kept.chart_registry);
        extensions.registry_secret = typed(&self.args.registry_secret, kept.registry_secret);
        extensions.local_registry = typed(&self.args.local_registry, kept.local_registry);
        if extensions.chart_registry.is_empty() && !extensions.registry_secret.is_empty() {
            let error = anyhow!("--registry-secret signs in at a registry of charts, and there is none");
            return Err(Failure::usage(error).hint("--chart-registry oci://HOST/PATH, or --registry-secret \"\""));
        }
        if let Some(image) = self.args.extension_image.as_ref().or(kept.image.as_ref()) {
            let (repository, tag, digest) = split_image(image);
            extensions.image = ExtensionImage { repository, tag, digest };
        }
        self.args.gitops.apply(&mut values.gitops, kept.gitops);
        let mut said =
            vec!["extension-manager is an administrator of the cluster (ClusterRole cluster-admin)".to_owned()];
        for key in &extensions.catalogue_keys {
            said.push(format!("the catalogue is trusted by key {}, {source}", id_of(key)?));
        }
        said.push(match extensions.allowed_types.as_slice() {
            [] => "every extension type of that catalogue may be installed".to_owned(),
            types => format!("extension types that may be installed: {}", types.join(", ")),
        });
        if !extensions.locked_settings.is_empty() {
            // Not their values: they may be nobody's business.
            let keys: Vec<_> = extensions.locked_settings.iter().filter_map(|one| one.split('=').next()).collect();
            said.push(format!("settings that the gateway may not give: {}", keys.join(", ")));
        }
        if !extensions.chart_registry.is_empty() {
            said.push(format!("charts come from {}, and not through the gateway", extensions.chart_registry));
        }
        if !extensions.local_registry.is_empty() {
            said.push(format!("images of charts come from {}", extensions.local_registry));
        }
        said.push(bounds(&values.gitops));
        Ok(said)
    }

    /// Decides the keys and the catalogue's id; says where they come from.
    fn pin(
        &self,
        values: &mut Values,
        kept: Option<&KeptExtensions>,
        settings: &InstallSettings,
    ) -> Outcome<&'static str> {
        let extensions = &mut values.extensions;
        let typed_id = self.args.catalogue_id.as_ref().map(ToString::to_string);
        if !self.keys.is_empty() {
            extensions.catalogue_keys = self.keys.iter().map(PublicKey::to_pem).collect();
            extensions.catalogue_id = typed_id.unwrap_or_default();
            return Ok("from --catalogue-key");
        }
        if let Some(kept) = kept.filter(|kept| !kept.keys.is_empty()) {
            extensions.catalogue_keys.clone_from(&kept.keys);
            extensions.catalogue_id = typed_id.unwrap_or_else(|| kept.catalogue.clone());
            return Ok("as before");
        }
        let Some(named) = settings.catalogue.as_ref().filter(|named| !named.keys.is_empty()) else {
            let error =
                anyhow!("the keys that sign the catalogue of extensions are unknown: the gateway serves no catalogue");
            return Err(
                Failure::usage(error).hint("--catalogue-key FILE, as `towline catalogue init` wrote it (*.pub)")
            );
        };
        if typed_id.as_ref().is_some_and(|id| *id != named.id) {
            let error = anyhow!("--catalogue-id: the gateway's catalogue is {}", named.id);
            return Err(Failure::usage(error).hint("name the keys of the other catalogue too: --catalogue-key FILE"));
        }
        extensions.catalogue_keys.clone_from(&named.keys);
        extensions.catalogue_id.clone_from(&named.id);
        Ok("which the gateway's catalogue names")
    }
}

fn read_key(file: &PathBuf) -> Outcome<PublicKey> {
    let of_file = || format!("--catalogue-key {}", file.display());
    let text = std::fs::read(file).with_context(of_file).map_err(Failure::usage)?;
    let key = PublicKey::from_pem(&text).with_context(of_file);
    key.map_err(|error| {
        Failure::usage(error).hint("expected a public key (PEM), as `towline catalogue init` wrote it (*.pub)")
    })
}

/// As `towline catalogue keys list` has it.
fn id_of(pem: &str) -> Outcome<String> {
    Ok(PublicKey::from_pem(pem.as_bytes())
        .context("a key of the catalogue of extensions cannot be read")?
        .id()
        .to_string())
}

#[cfg(test)]
mod tests {
    use catalogue::key::SigningKey;
    use types::agent_api::CatalogueTrust;

    use super::*;

    fn key() -> String {
        SigningKey::generate().unwrap().public().to_pem()
    }

    fn settings(catalogue: Option<CatalogueTrust>) -> InstallSettings {
        InstallSettings {
            urls: vec!["https://gw".to_owned()],
            roots: String::new(),
            issuers: Vec::new(),
            version: String::new(),
            tenant_id: String::new(),
            catalogue,
        }
    }

    fn typed(on: Option<bool>, keys: &[&str], allowed: &[&str]) -> Typed {
        let keys: Vec<PublicKey> = keys.iter().map(|pem| PublicKey::from_pem(pem.as_bytes()).unwrap()).collect();
        let allowed_extension_types = allowed.iter().map(|kind| (*kind).to_owned()).collect();
        let files = keys.iter().map(|_| PathBuf::new()).collect();
        Typed { on, keys, args: CatalogueArgs { keys: files, allowed_extension_types, ..CatalogueArgs::default() } }
    }

    #[test]
    fn keys_are_pinned_once_and_not_taken_from_the_gateway_again() {
        let (first, second, typed_key) = (key(), key(), key());
        let id = "0123456789abcdef".repeat(2);
        let of = |key: &str| settings(Some(CatalogueTrust { id: id.clone(), keys: vec![key.to_owned()] }));
        let mut values = Values::default();
        let said = typed(Some(true), &[], &["example.web"]).apply(&mut values, None, &of(&first)).unwrap();
        assert_eq!((&values.extensions.catalogue_keys, &values.extensions.catalogue_id), (&vec![first.clone()], &id));
        assert!(said.iter().any(|line| line.contains(&id_of(&first).unwrap()) && line.contains("gateway")), "{said:?}");
        let kept = || KeptExtensions {
            keys: vec![first.clone()],
            catalogue: id.clone(),
            allowed_types: vec!["example.web".to_owned()],
            locked_settings: vec!["*:image".to_owned()],
            chart_registry: "oci://r.test/charts".to_owned(),
            registry_secret: "registry".to_owned(),
            local_registry: "r.test/mirror".to_owned(),
            digest: None,
            image: Some("r:5000/e".to_owned()),
            gitops: KeptGitops { scopes: vec!["namespace".to_owned()], ..KeptGitops::default() },
        };
        // Another run, with or without the option, keeps what is there, whatever the gateway says by then.
        for on in [None, Some(true)] {
            let mut values = Values::default();
            typed(on, &[], &[]).apply(&mut values, Some(kept()), &of(&second)).unwrap();
            let now = &values.extensions;
            assert!(now.enabled && now.catalogue_keys == [first.clone()] && now.catalogue_id == id);
            assert_eq!(values.gitops.allowed_scopes, ["namespace"]);
            assert_eq!(
                (now.allowed_types.as_slice(), now.image.repository.as_str()),
                (&["example.web".to_owned()][..], "r:5000/e")
            );
        }
        let mut values = Values::default();
        typed(None, &[&typed_key], &[""]).apply(&mut values, Some(kept()), &of(&second)).unwrap();
        let pinned = (values.extensions.catalogue_keys.clone(), values.extensions.catalogue_id.as_str());
        assert_eq!(pinned, (vec![typed_key], ""));
        assert!(values.extensions.allowed_types.is_empty());
        let places = |values: &Values| {
            let of = &values.extensions;
            [&of.chart_registry, &of.registry_secret, &of.local_registry].map(String::clone)
        };
        assert_eq!(places(&values), ["oci://r.test/charts", "registry", "r.test/mirror"]);
        let mut other = typed(None, &[], &[]);
        other.args.chart_registry = Some(String::new());
        assert!(!other.is_nothing() && other.apply(&mut Values::default(), Some(kept()), &of(&second)).is_err());
        other.args.registry_secret = Some(String::new());
        other.args.local_registry = Some("other.test".to_owned());
        let mut values_of_other = Values::default();
        let said = other.apply(&mut values_of_other, Some(kept()), &of(&second)).unwrap();
        assert_eq!(places(&values_of_other), ["", "", "other.test"]);
        assert!(said.iter().any(|line| line == "images of charts come from other.test"), "{said:?}");
        assert_eq!(values.extensions.locked_settings, ["*:image"], "what is not typed stays");
        let mut values = Values::default();
        typed(Some(false), &[], &[]).apply(&mut values, Some(kept()), &of(&second)).unwrap();
        assert!(!values.extensions.enabled);
    }

    #[test]
    fn g7_bounds_of_gitops_stay_until_others_are_typed() {
        let kept = || KeptExtensions {
            keys: vec![key()],
            gitops: KeptGitops {
                repositories: vec!["https://git.example.org/*".to_owned()],
                scopes: vec!["namespace".to_owned()],
                namespaces: vec!["team".to_owned()],
            },
            ..KeptExtensions::default()
        };
        let mut typed = typed(None, &[], &[]);
        typed.args.gitops.scopes = vec![String::new()];
        typed.args.gitops.namespaces = vec!["other".to_owned()];
        assert!(!typed.is_nothing());
        let mut values = Values::default();
        let said = typed.apply(&mut values, Some(kept()), &settings(None)).unwrap();
        assert_eq!(values.gitops.allowed_repositories, ["https://git.example.org/*"]);
        assert!(values.gitops.allowed_scopes.is_empty());
        assert_eq!(values.gitops.allowed_namespaces, ["other"]);
        let wanted = "fluxConfigurations may use repository https://git.example.org/*, every scope and namespace other";
        assert!(said.iter().any(|line| line == wanted), "{said:?}");
    }

    #[test]
    fn extensions_without_a_key_are_refused() {
        let refused = |typed: Typed, settings: InstallSettings| {
            let failure = typed.apply(&mut Values::default(), None, &settings).unwrap_err();
            format!("{:#}", failure.into_error())
        };
        assert!(
            refused(typed(Some(true), &[], &[]), settings(None))
                .contains("the keys that sign the catalogue of extensions are unknown")
        );
        let named = settings(Some(CatalogueTrust { id: "a".to_owned(), keys: vec!["no key".to_owned()] }));
        assert!(refused(typed(Some(true), &[], &[]), named).contains("a key of the catalogue"));
        assert!(refused(typed(None, &[&key()], &[]), settings(None)).contains("extensions are off"));
        let said = typed(None, &[], &[]).apply(&mut Values::default(), None, &settings(None)).unwrap();
        assert!(said.is_empty());
    }
}
