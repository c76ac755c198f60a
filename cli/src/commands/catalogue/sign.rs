//! Signs a catalogue, and verifies one as a cluster does.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use catalogue::{
    digest::Sha256,
    index::{CatalogueId, Index, Timestamp},
    key::PublicKey,
    signature::Signatures,
    verify::{Trust, Verified},
};
use daemon::settings::positive_duration;
use gateway::files::{self, EditLock};
use serde_json::{Value, json};

use super::{
    folder::{self, Folder},
    keys, now,
};
use crate::{
    failure::{Failure, Outcome},
    output::Column,
    terminal::say,
};

/// What is shown of a signed catalogue.
pub const COLUMNS: &[Column] = &[
    ("Catalogue", "/catalogue"),
    ("Revision", "/revision"),
    ("Made", "/made"),
    ("Expires", "/expires"),
    ("SignedBy", "/signedBy"),
    ("Keys", "/keys"),
    ("Charts", "/charts"),
];
/// Bytes of a file of pins: one with the most keys is a tenth of it.
const PINS_BYTES: u64 = 64 * 1024;

/// `towline catalogue sign`.
#[derive(Debug, clap::Args)]
pub struct SignArgs {
    /// A private key; repeat for more, such as the old one beside its successor
    #[arg(long = "key", value_name = "FILE", required = true)]
    keys: Vec<PathBuf>,
    /// How long clusters accept it, such as 90d; without this it does not expire
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    expires: Option<Duration>,
}

/// `towline catalogue verify`.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// A public key that is pinned; repeat for more. Not used once there are pins
    #[arg(long = "key", value_name = "FILE", required_unless_present = "pins")]
    keys: Vec<PathBuf>,
    /// The id of the catalogue that is pinned; without this it may be any. Not used once there are pins
    #[arg(long, value_name = "ID")]
    id: Option<CatalogueId>,
    /// Keep what a cluster keeps in this file, and verify by that: made from --key if it is not there
    #[arg(long, value_name = "FILE")]
    pins: Option<PathBuf>,
}

impl SignArgs {
    /// Signs the next revision if clusters would take it.
    pub fn run(self, folder: &Folder) -> Outcome<Value> {
        let (_lock, mut index) = folder.edit()?;
        let signers = self.keys.iter().map(|path| keys::read_private(path, folder)).collect::<Outcome<Vec<_>>>()?;
        let may_sign: Vec<_> = signers.iter().map(|key| key.public()).filter(|key| index.keys.contains(key)).collect();
        if may_sign.is_empty() {
            return Err(Failure::from(anyhow!("none of these keys may sign this catalogue"))
                .hint("towline catalogue keys list; towline catalogue keys add FILE.pub lets one sign"));
        }
        index.revision = index
            .revision
            .checked_add(1)
            .context("the index has the highest possible revision and cannot be signed again")?;
        let made = now();
        index.made = Timestamp(made);
        index.expires = self
            .expires
            .map(|life| made.checked_add(life.try_into()?).context("it would expire too late").map(Timestamp))
            .transpose()?;
        let bytes = index.to_bytes()?;
        let signatures = Signatures::make(&bytes, &signers);
        let file = signatures.to_bytes()?;
        // As a cluster that has pinned these keys would see it; nothing is written that it would not take.
        let verified = Trust::new(may_sign, None).verify(&bytes, &file, made)?;
        open_all(&verified, folder)?;
        folder.write_index(&index)?;
        folder.write_signatures(&file)?;
        for key in signers.iter().map(|key| key.public()).filter(|key| !index.keys.contains(key)) {
            say(&format!("{} signed too, and may not from now on: for clusters that know no other key", key.id()));
        }
        Ok(shown(&index, &signatures))
    }
}

impl VerifyArgs {
    /// Signatures, index, and every chart.
    pub fn run(self, folder: &Folder) -> Outcome<Value> {
        let _lock = self.pins.as_deref().map(EditLock::take).transpose()?;
        let pins = self.pins.as_deref().map(read_pins).transpose()?.flatten();
        let trust = match pins {
            Some(trust) => {
                if !self.keys.is_empty() || self.id.is_some() {
                    say("there are pins: --key and --id are not used");
                }
                trust
            }
            None if self.keys.is_empty() => {
                return Err(
                    Failure::usage(anyhow!("there are no pins yet, and no key to begin with")).hint("--key FILE.pub")
                );
            }
            None => {
                let keys = self.keys.iter().map(|path| keys::read_public(path)).collect::<Outcome<Vec<PublicKey>>>()?;
                Trust::new(keys, self.id)
            }
        };
        let (index, signatures) = (folder.index_bytes()?, folder.signatures()?);
        let verified = trust.verify(&index, &signatures, now())?;
        // As a cluster does: before a chart is opened.
        if let Some(pins) = &self.pins {
            files::write_public(pins, &serde_json::to_vec_pretty(verified.trust())?)?;
        }
        open_all(&verified, folder)?;
        Ok(shown(verified.index(), &Signatures::parse(&signatures)?))
    }
}

/// What is pinned, if anything is. A file that may be there is none that is not: whoever begins anew takes an old index.
fn read_pins(path: &Path) -> Outcome<Option<Trust>> {
    if !path.try_exists().with_context(|| format!("cannot read {}", path.display()))? {
        return Ok(None);
    }
    let bytes = folder::read(path, PINS_BYTES)?;
    let pins = serde_json::from_slice(&bytes).with_context(|| format!("{} is not a file of pins", path.display()))?;
    Ok(Some(pins))
}

/// Every chart is the one in the index, and can be read. All that are not are told.
fn open_all(verified: &Verified, folder: &Folder) -> Outcome<()> {
    let mut refused = 0;
    let mut all = 0;
    for kind in &verified.index().types {
        for release in &kind.versions {
            all += 1;
            let opened = folder::read_chart(&folder.chart(&release.chart))
                .and_then(|bytes| verified.open(&kind.name, &release.version, bytes).map(drop).map_err(Failure::from));
            if let Err(failure) = opened {
                refused += 1;
                say(&format!("{} {}: {}", kind.name, release.version, daemon::chain(failure.into_error().as_ref())));
            }
        }
    }
    if refused > 0 {
        return Err(anyhow!("{refused} of {all} charts are not those of the catalogue, or cannot be read").into());
    }
    Ok(())
}

fn shown(index: &Index, signatures: &Signatures) -> Value {
    let ids = |ids: Vec<Sha256>| ids.iter().map(Sha256::to_string).collect::<Vec<_>>();
    json!({
        "catalogue": index.catalogue,
        "revision": index.revision,
        "made": index.made,
        "expires": index.expires,
        "signedBy": ids(signatures.key_ids().collect()),
        "keys": ids(index.keys.iter().map(PublicKey::id).collect()),
        "charts": index.types.iter().map(|kind| kind.versions.len()).sum::<usize>(),
    })
}
