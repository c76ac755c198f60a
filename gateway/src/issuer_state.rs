//! Where the built-in issuer of a configuration keeps what it knows: in the folder of `[issuer] state_dir`, or in the
//! store where that is PostgreSQL, which several gateways share (docs/identity.md).

use std::sync::Arc;

use crate::{
    config::{
        Config,
        api::{Api, StoreAt},
        issuer::BuiltInIssuer,
        replicas::STALE_FOR,
    },
    issuer::{Documents, Issuer, IssuerError, KeptError, Vault},
    replicas::LEASE,
    resources::connected_cluster,
    store::{Store, protect::Protector},
};

/// The settings of an issuer that keeps its state in the store.
pub fn shared(config: &Config) -> Option<(&Api, &BuiltInIssuer)> {
    let (api, issuer) = (config.api.as_ref()?, config.issuer.as_ref()?);
    matches!(api.store, StoreAt::Postgres { .. }).then_some((api, issuer))
}

/// The documents of the configuration's issuer, for a command; to be closed when it is done.
///
/// # Errors
/// When the store or its key cannot be opened, or the gateway has never run on it.
pub async fn documents(config: &Config, issuer: &BuiltInIssuer) -> Result<Documents, KeptError> {
    let Some((api, _)) = shared(config) else { return Ok(Documents::Folder(issuer.state_dir.clone())) };
    let store = Store::open_used(&api.store.url()).await?.ok_or(KeptError::NotStarted)?;
    match Protector::open(&api.store_key_file) {
        Ok(protector) => Ok(Documents::Store(Vault::new(store, Arc::new(protector)))),
        Err(error) => {
            store.close().await;
            Err(error.into())
        }
    }
}

/// Opens the configuration's issuer, where it has one. `store`: that of its `[api]`, open.
///
/// # Errors
/// As [`Issuer::open`] and [`Issuer::open_shared`].
pub async fn open(config: &Config, store: Option<&Store>) -> Result<Option<Arc<Issuer>>, IssuerError> {
    let (Some(api), Some(own)) = (&config.api, &config.issuer) else { return Ok(None) };
    let settings = own.settings(api);
    let (Some(_), Some(store)) = (shared(config), store) else { return Ok(Some(Arc::new(Issuer::open(settings)?))) };
    let protector = Protector::open(&api.store_key_file).map_err(KeptError::from)?;
    let kind = connected_cluster::NAME.to_ascii_lowercase();
    let used = store.count(&kind, "").await.map_err(KeptError::from)? > 0;
    let stale_for = config.replicas.as_ref().map_or(STALE_FOR, |replicas| replicas.stale_for);
    let vault = Vault::new(store.clone(), Arc::new(protector));
    Ok(Some(Arc::new(Issuer::open_shared(settings, vault, used, LEASE + stale_for).await?)))
}
