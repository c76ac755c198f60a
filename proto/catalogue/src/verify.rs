//! What a cluster pins of a catalogue, and what it accepts by that. [`Trust`] is kept between calls; [`Verified`] cannot be
//! had but from [`Trust::verify`], and a chart's bytes ([`VerifiedChart`]) but from [`Verified::open`].
//!
//! An index is accepted when a pinned key signed it, one of the keys that it names signed it too (so that nobody is locked
//! out by a key that nobody holds), it is of the pinned catalogue, not older than the last one, and not expired. Then the
//! keys that it names are those that are pinned.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::{
    chart::{Chart, ChartError},
    digest::Sha256,
    index::{CatalogueId, Index, IndexError, Release, Timestamp},
    key::PublicKey,
    limits::INDEX_BYTES,
    signature::{SignatureError, Signatures},
    version::Version,
};

/// What is pinned of a catalogue: keys, its id and the last index that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trust {
    keys: Vec<PublicKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    catalogue: Option<CatalogueId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<Seen>,
}

/// The last index that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    revision: u64,
    digest: Sha256,
}

/// Why an index is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// Its file of signatures cannot be read.
    #[error(transparent)]
    Signatures(#[from] SignatureError),
    /// Nobody who may has signed it.
    #[error("none of the pinned keys signed the index, or it was changed after that")]
    NotSigned,
    /// It cannot be read.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Nobody has shown to hold a key of those that it names.
    #[error("the index names keys that may sign from now on, and none of them signed it")]
    NewKeysUnproved,
    /// It is another catalogue's.
    #[error("the index is of the catalogue {given}, not of {pinned}")]
    OtherCatalogue {
        /// Id of the catalogue that the index is of.
        given: CatalogueId,
        /// Whose it should be.
        pinned: CatalogueId,
    },
    /// It is older than the last one.
    #[error("the index has revision {given}, and {seen} has been seen: an old index is played back")]
    Replayed {
        /// Revision of the index that was refused.
        given: u64,
        /// The last one's.
        seen: u64,
    },
    /// There are two of this revision.
    #[error("there are two different indexes of revision {0}: its key is used elsewhere too, or a copy was signed")]
    Forked(u64),
    /// The index has expired, at this instant.
    #[error("the index has expired at {0}")]
    Expired(Timestamp),
}

impl Trust {
    /// Pins these keys, and a catalogue if its id is known; otherwise the first that is accepted is pinned.
    pub fn new(keys: Vec<PublicKey>, catalogue: Option<CatalogueId>) -> Self {
        Self { keys, catalogue, seen: None }
    }

    /// Pins other keys by an operator's word, and a catalogue if its id is known. What has been seen of the same catalogue
    /// is not forgotten.
    pub fn pinned_anew(self, keys: Vec<PublicKey>, catalogue: Option<CatalogueId>) -> Self {
        let is_same = catalogue.is_none() || catalogue == self.catalogue;
        if is_same { Self { keys, ..self } } else { Self::new(keys, catalogue) }
    }

    /// The keys that are pinned.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// The last revision that was accepted.
    pub fn revision(&self) -> Option<u64> {
        self.seen.map(|seen| seen.revision)
    }

    /// Judges an index. The first reason against it is told; nothing of it is read before its signature is verified.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn verify(&self, index: &[u8], signatures: &[u8], now: OffsetDateTime) -> Result<Verified, VerifyError> {
        if index.len() > INDEX_BYTES {
            return Err(IndexError::TooLarge(index.len()).into());
        }
        let signatures = Signatures::parse(signatures)?;
        if !signatures.are_of_one_of(&self.keys, index) {
            return Err(VerifyError::NotSigned);
        }
        let (bytes, index) = (index, Index::parse(index)?);
        if let Some(pinned) = self.catalogue.as_ref().filter(|pinned| **pinned != index.catalogue) {
            return Err(VerifyError::OtherCatalogue { given: index.catalogue, pinned: pinned.clone() });
        }
        let new = Seen { revision: index.revision, digest: Sha256::of(bytes) };
        if let Some(seen) = self.seen {
            if new.revision < seen.revision {
                return Err(VerifyError::Replayed { given: new.revision, seen: seen.revision });
            }
            if new.revision == seen.revision && new.digest != seen.digest {
                return Err(VerifyError::Forked(new.revision));
            }
        }
        if !signatures.are_of_one_of(&index.keys, bytes) {
            return Err(VerifyError::NewKeysUnproved);
        }
        if let Some(end) = index.expires.filter(|end| end.0 <= now) {
            return Err(VerifyError::Expired(end));
        }
        let next = Self { keys: index.keys.clone(), catalogue: Some(index.catalogue.clone()), seen: Some(new) };
        Ok(Verified { index, next })
    }
}

/// An index that was accepted.
#[derive(Debug, Clone)]
pub struct Verified {
    index: Index,
    next: Trust,
}

/// Why a chart is not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The catalogue does not have it.
    #[error("the catalogue has no version {version} of {extension_type}")]
    Unknown {
        /// Name of the extension type.
        extension_type: String,
        /// The version that was asked for.
        version: Version,
    },
    /// It has another size.
    #[error("the chart has {given} bytes, and {catalogued} in the catalogue")]
    Size {
        /// Size of the chart that was given, in bytes.
        given: u64,
        /// Bytes, as the index has them.
        catalogued: u64,
    },
    /// It has another digest.
    #[error("the chart is not the one in the catalogue: its digest is {given}, not {catalogued}")]
    Digest {
        /// Digest of the chart that was given.
        given: Sha256,
        /// SHA-256, as the index has it.
        catalogued: Sha256,
    },
    /// It cannot be read.
    #[error(transparent)]
    Chart(#[from] ChartError),
    /// It is another one than the index says.
    #[error("the chart is {given}, and {catalogued} in the catalogue")]
    OtherChart {
        /// Its own name and version.
        given: String,
        /// Name and version, as the index has them.
        catalogued: String,
    },
}

impl Verified {
    /// The index itself.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// What is pinned from now on; to be kept before a chart is opened, so that an index that was seen is not forgotten by a
    /// chart that is broken.
    pub fn trust(&self) -> &Trust {
        &self.next
    }

    /// Opens the chart of a version: size, then digest, then contents.
    ///
    /// # Errors
    /// Why it is not the catalogue's chart, or cannot be read.
    pub fn open(&self, extension_type: &str, version: &Version, bytes: Vec<u8>) -> Result<VerifiedChart, OpenError> {
        let found = self.index.extension_type(extension_type).and_then(|one| one.release(version));
        let release = found.ok_or_else(|| OpenError::Unknown {
            extension_type: extension_type.to_owned(),
            version: version.clone(),
        })?;
        let chart = open(release, &bytes)?;
        Ok(VerifiedChart { bytes, chart })
    }
}

fn open(release: &Release, bytes: &[u8]) -> Result<Chart, OpenError> {
    let reference = &release.chart;
    let (given, catalogued) = (bytes.len() as u64, reference.size);
    if given != catalogued {
        return Err(OpenError::Size { given, catalogued });
    }
    let (given, catalogued) = (Sha256::of(bytes), reference.sha256);
    if given != catalogued {
        return Err(OpenError::Digest { given, catalogued });
    }
    let chart = Chart::read(bytes)?;
    if chart.name != reference.name || !chart.version.is(&release.version) {
        return Err(OpenError::OtherChart {
            given: format!("{} {}", chart.name, chart.version),
            catalogued: format!("{} {}", reference.name, release.version),
        });
    }
    Ok(chart)
}

/// A chart of a catalogue that was accepted: what may be installed.
#[derive(Debug, Clone)]
pub struct VerifiedChart {
    bytes: Vec<u8>,
    chart: Chart,
}

impl VerifiedChart {
    /// The archive, for helm.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What is in it.
    pub fn chart(&self) -> &Chart {
        &self.chart
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;
    use crate::{
        key::SigningKey,
        testing::{self, metadata},
    };

    const NOW: OffsetDateTime = datetime!(2026-11-27 10:00 UTC);

    fn key() -> SigningKey {
        SigningKey::generate().unwrap()
    }

    fn index(revision: u64, keys: &[&SigningKey]) -> Index {
        let mut index = testing::index(&[("1.0.0", &["Stable"])]);
        index.revision = revision;
        index.keys = keys.iter().map(|key| key.public()).collect();
        index
    }

    /// The index and its signatures as files.
    fn signed(index: &Index, keys: &[&SigningKey]) -> (Vec<u8>, Vec<u8>) {
        let bytes = index.to_bytes().unwrap();
        let copies: Vec<_> =
            keys.iter().map(|key| SigningKey::from_pem(key.to_pem().unwrap().as_bytes()).unwrap()).collect();
        let signatures = Signatures::make(&bytes, &copies).to_bytes().unwrap();
        (bytes, signatures)
    }

    fn accept(trust: &Trust, index: &Index, keys: &[&SigningKey]) -> Result<Verified, VerifyError> {
        let (index, signatures) = signed(index, keys);
        trust.verify(&index, &signatures, NOW)
    }

    fn pins(keys: &[&SigningKey]) -> Trust {
        Trust::new(keys.iter().map(|key| key.public()).collect(), None)
    }

    #[test]
    fn index_of_a_pinned_key_is_accepted_and_opens_its_chart() {
        let own = key();
        let verified = accept(&pins(&[&own]), &index(1, &[&own]), &[&own]).unwrap();
        assert_eq!(verified.trust().revision(), Some(1));
        let chart = testing::chart(&metadata("web", "1.0.0"), &[]);
        let version = "v1.0.0".parse().unwrap();
        let opened = verified.open("Example.Web", &version, chart.clone()).unwrap();
        assert_eq!((opened.bytes(), opened.chart().name.as_str()), (chart.as_slice(), "web"));
        let kept: Trust = serde_json::from_value(serde_json::to_value(verified.trust()).unwrap()).unwrap();
        assert_eq!(&kept, verified.trust());
    }

    #[test]
    fn index_that_is_not_signed_or_was_changed_is_refused() {
        let (own, other) = (key(), key());
        let trust = pins(&[&own]);
        assert_eq!(accept(&trust, &index(1, &[&own]), &[&other]).unwrap_err(), VerifyError::NotSigned);
        assert_eq!(accept(&trust, &index(1, &[&own]), &[]).unwrap_err(), VerifyError::NotSigned);
        let (mut bytes, signatures) = signed(&index(1, &[&own]), &[&own]);
        bytes.push(b' ');
        assert_eq!(trust.verify(&bytes, &signatures, NOW).unwrap_err(), VerifyError::NotSigned);
        // Even what cannot be read is not read before that.
        assert_eq!(trust.verify(b"{", &signatures, NOW).unwrap_err(), VerifyError::NotSigned);
        let large = vec![b' '; INDEX_BYTES + 1];
        assert!(matches!(trust.verify(&large, &signatures, NOW), Err(VerifyError::Index(IndexError::TooLarge(_)))));
        assert!(matches!(trust.verify(&bytes, b"", NOW), Err(VerifyError::Signatures(_))));
    }

    #[test]
    fn older_forked_or_foreign_index_is_refused() {
        let own = key();
        let verified = accept(&pins(&[&own]), &index(5, &[&own]), &[&own]).unwrap();
        let trust = verified.trust();
        assert!(accept(trust, verified.index(), &[&own]).is_ok(), "the same one again");
        let older = accept(trust, &index(4, &[&own]), &[&own]).unwrap_err();
        assert_eq!(older, VerifyError::Replayed { given: 4, seen: 5 });
        let mut fork = index(5, &[&own]);
        fork.types.clear();
        assert_eq!(accept(trust, &fork, &[&own]).unwrap_err(), VerifyError::Forked(5));
        let mut other = index(6, &[&own]);
        other.catalogue = CatalogueId::generate().unwrap();
        assert!(matches!(accept(trust, &other, &[&own]), Err(VerifyError::OtherCatalogue { .. })));
        assert_eq!(accept(trust, &index(6, &[&own]), &[&own]).unwrap().trust().revision(), Some(6));
    }

    #[test]
    fn new_keys_are_pinned_when_signed_by_an_old_one_and_proved() {
        let (old, new, thief) = (key(), key(), key());
        let trust = pins(&[&old]);
        // Nobody can sign for what follows.
        let unproved = accept(&trust, &index(2, &[&new]), &[&old]).unwrap_err();
        assert_eq!(unproved, VerifyError::NewKeysUnproved);
        assert_eq!(accept(&trust, &index(2, &[&new]), &[&new]).unwrap_err(), VerifyError::NotSigned);
        let rotated = accept(&trust, &index(2, &[&new]), &[&old, &new]).unwrap();
        assert_eq!(rotated.trust().keys(), [new.public()]);
        // The old key signs for nobody any longer.
        assert_eq!(accept(rotated.trust(), &index(3, &[&old]), &[&old]).unwrap_err(), VerifyError::NotSigned);
        assert_eq!(accept(rotated.trust(), &index(3, &[&thief]), &[&old, &thief]).unwrap_err(), VerifyError::NotSigned);
        assert!(accept(rotated.trust(), &index(3, &[&new]), &[&new]).is_ok());
        // A cluster that missed the rotation accepts it while the old key still signs too.
        assert!(accept(&trust, &index(3, &[&new]), &[&old, &new]).is_ok());
    }

    #[test]
    fn keys_pinned_anew_do_not_bring_an_old_index_back() {
        let (old, new) = (key(), key());
        let seen = accept(&pins(&[&old]), &index(5, &[&old]), &[&old]).unwrap().trust().clone();
        let catalogue = seen.catalogue.clone();
        for again in [
            seen.clone().pinned_anew(vec![new.public()], None),
            seen.clone().pinned_anew(vec![new.public()], catalogue),
        ] {
            assert!(matches!(accept(&again, &index(4, &[&new]), &[&new]), Err(VerifyError::Replayed { .. })));
            assert!(accept(&again, &index(6, &[&new]), &[&new]).is_ok());
        }
        let other = seen.pinned_anew(vec![new.public()], Some(CatalogueId::generate().unwrap()));
        assert_eq!(other.revision(), None);
    }

    #[test]
    fn expired_index_is_refused() {
        let own = key();
        let mut index = index(1, &[&own]);
        index.expires = Some(Timestamp(NOW));
        assert_eq!(accept(&pins(&[&own]), &index, &[&own]).unwrap_err(), VerifyError::Expired(Timestamp(NOW)));
        index.expires = Some(Timestamp(NOW + time::Duration::SECOND));
        assert!(accept(&pins(&[&own]), &index, &[&own]).is_ok());
    }

    #[test]
    fn other_bytes_than_the_catalogues_chart_are_not_opened() {
        let own = key();
        let mut index = index(1, &[&own]);
        let other = testing::chart(&metadata("other", "1.0.0"), &[]);
        let mut second = testing::release("2.0.0", &["Stable"]);
        second.chart.size = other.len() as u64;
        second.chart.sha256 = Sha256::of(&other);
        index.types[0].versions.push(second);
        let verified = accept(&pins(&[&own]), &index, &[&own]).unwrap();
        let [first, second, third] = ["1.0.0", "2.0.0", "3.0.0"].map(|text| text.parse().unwrap());
        let open = |version: &Version, bytes: &[u8]| verified.open("example.web", version, bytes.to_vec()).unwrap_err();
        let chart = testing::chart(&metadata("web", "1.0.0"), &[]);
        assert!(matches!(open(&first, &chart[1..]), OpenError::Size { .. }));
        let mut changed = chart.clone();
        changed[20] ^= 1;
        assert!(matches!(open(&first, &changed), OpenError::Digest { .. }));
        assert!(matches!(open(&second, &other), OpenError::OtherChart { .. }));
        assert!(matches!(open(&third, &chart), OpenError::Unknown { .. }));
    }

    proptest! {
        /// Whatever order indexes come in, the accepted revisions never fall.
        #[test]
        fn revisions_never_fall(revisions in proptest::collection::vec(0u64..6, 1..12)) {
            let own = key();
            let mut trust = pins(&[&own]);
            for revision in revisions {
                let before = trust.revision();
                match accept(&trust, &index(revision, &[&own]), &[&own]) {
                    Ok(verified) => trust = verified.trust().clone(),
                    Err(error) => {
                        let replayed = matches!(error, VerifyError::Replayed { .. });
                        prop_assert!(replayed && before.is_some_and(|before| revision < before));
                    }
                }
                prop_assert!(trust.revision() >= before);
            }
        }
    }
}
