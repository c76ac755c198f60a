//! The signed catalogue of charts as this gateway serves it: a folder that an operator put here (docs/catalogue.md).
//! Clusters verify it by keys that they pinned. The gateway pins none and proves nothing: it reads the index to refuse
//! early what cannot be, and to hand out no file but a chart that the index names.
//!
//! The folder may change while the gateway runs. Changes are looked for when somebody asks, on a thread of their own; an
//! index that cannot be used, or is not signed yet, leaves the last good one in place.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ::catalogue::{
    CHART_FOLDER, INDEX_FILE, SIGNATURE_FILE,
    digest::Sha256,
    index::{ChartReference, Index, IndexError},
    limits::{INDEX_BYTES, SIGNATURE_BYTES},
    signature::{SignatureError, Signatures},
};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::stream;
use tokio::{runtime::Handle, sync::Semaphore};
use types::{
    agent_api::{CHART_BYTES, CatalogueIndex, encode},
    ids::ClusterId,
};

use crate::{
    answers::Live,
    files::Stamp,
    places::{Held as Place, Shares},
};

/// Pause between two looks at the folder at least.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Charts that are sent at once. The clusters of a subscription have a share of those that are free.
pub const CHARTS: u32 = 1024;
/// Charts that one cluster fetches at once.
pub const CHARTS_OF_CLUSTER: usize = 2;
/// Bytes of a chart that is being sent which are in memory. The rest is read when these have been taken, so that who
/// reads slowly holds a place, and neither a file nor a chart.
const CHUNK: usize = 64 * 1024;
/// Files that are read at once.
const READS: usize = 8;
/// How long a chart waits for its place,
const PLACE_WAIT: Duration = Duration::from_secs(20);
/// and how often it looks whether there is one.
const PLACE_LOOK: Duration = Duration::from_millis(100);

/// Why a catalogue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The system refused.
    #[error("cannot read {path}")]
    Read {
        /// Which file or folder.
        path: PathBuf,
        /// What the operating system reported.
        #[source]
        source: io::Error,
    },
    /// A file is too large.
    #[error("{path} has more than {most} bytes")]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// The largest accepted size, in bytes.
        most: usize,
    },
    /// The index is not well-formed.
    #[error("{path} is not a catalogue's index")]
    Index {
        /// Path of the index.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: IndexError,
    },
    /// The file of signatures is not well-formed.
    #[error("{path} holds no signatures of a catalogue")]
    Signatures {
        /// Path of the file of signatures.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: SignatureError,
    },
}

/// What clusters are told of a file that is there and cannot be read: the gateway's log says more.
const UNREADABLE: &str = "cannot be read";

/// Why a chart is not handed out.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// The index names no such chart.
    #[error("no chart of the catalogue has this digest")]
    Unknown,
    /// As many are being sent as the subscription's share of [`CHARTS`], and stay so.
    #[error("as many charts are being sent as the subscription's share of {CHARTS}")]
    Busy,
    /// [`CHARTS_OF_CLUSTER`] are being sent to this cluster.
    #[error("{CHARTS_OF_CLUSTER} charts are being sent to this cluster, the limit")]
    BusyCluster,
    /// Its file cannot be read, or is another one than the index says.
    #[error("{path}, a chart of the catalogue, {reason}")]
    File {
        /// Path of the chart's archive.
        path: PathBuf,
        /// Its name, as the index has it.
        name: String,
        /// What is wrong with it, for the log.
        reason: String,
        /// The same without a path of this machine, for clusters.
        told: &'static str,
    },
}

/// What is wrong with the file of a chart: for clusters, and for the log.
type FileFault = (&'static str, String);

/// What the folder held at one moment.
pub struct Edition {
    /// The index, parsed.
    pub index: Arc<Index>,
    /// The answer to agents who ask for it: [`CatalogueIndex`] in JSON.
    pub answer: Bytes,
    /// The digest of the index's bytes, which names the edition.
    pub digest: Sha256,
    /// Whether one of the keys that the index names signed it. If not, no cluster accepts it.
    pub is_signed: bool,
    charts: HashMap<Sha256, ChartReference>,
}

impl Edition {
    /// Reads a folder.
    ///
    /// # Errors
    /// What cannot be read, or is not well-formed.
    pub fn read(folder: &Path) -> Result<Self, CatalogueError> {
        let at = |name: &str| folder.join(name);
        let bytes = read(&at(INDEX_FILE), INDEX_BYTES)?;
        let signatures = read(&at(SIGNATURE_FILE), SIGNATURE_BYTES)?;
        let wrong = |source| CatalogueError::Index { path: at(INDEX_FILE), source };
        let index = Index::parse(&bytes).map_err(wrong)?;
        let wrong = |source| CatalogueError::Signatures { path: at(SIGNATURE_FILE), source };
        let is_signed = Signatures::parse(&signatures).map_err(wrong)?.are_of_one_of(&index.keys, &bytes);
        let answer = CatalogueIndex { index: encode(&bytes), signatures: encode(&signatures) };
        let answer = serde_json::to_vec(&answer).unwrap_or_default().into();
        let charts = index.types.iter().flat_map(|kind| &kind.versions).map(|release| &release.chart);
        let charts = charts.map(|chart| (chart.sha256, chart.clone())).collect();
        Ok(Self { index: Arc::new(index), answer, digest: Sha256::of(&bytes), is_signed, charts })
    }
}

/// What tells one state of the folder from the next.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamps {
    index: Stamp,
    signatures: Stamp,
}

impl Stamps {
    fn of(folder: &Path) -> Option<Self> {
        let stamp = |name: &str| Stamp::of(&folder.join(name)).ok();
        Some(Self { index: stamp(INDEX_FILE)?, signatures: stamp(SIGNATURE_FILE)? })
    }
}

struct Held {
    stamps: Option<Stamps>,
    edition: Option<Arc<Edition>>,
}

/// A catalogue that the gateway serves.
pub struct Catalogue {
    folder: PathBuf,
    held: ArcSwap<Held>,
    /// When the folder was looked at last.
    looked: Mutex<Instant>,
    /// Charts whose files were compared with their digests, as they were then; no others than the index names.
    compared: tokio::sync::Mutex<HashMap<Sha256, Stamp>>,
    places: Shares,
    reads: Arc<Semaphore>,
    fetching: Fetching,
}

impl Catalogue {
    /// Reads a folder for the first time. One that cannot be used is reported, and read again when it has changed.
    pub fn open(folder: PathBuf) -> Arc<Self> {
        let this = Self {
            folder,
            held: ArcSwap::from_pointee(Held { stamps: None, edition: None }),
            looked: Mutex::new(Instant::now()),
            compared: tokio::sync::Mutex::default(),
            places: Shares::new(CHARTS),
            reads: Arc::new(Semaphore::new(READS)),
            fetching: Fetching::default(),
        };
        this.look();
        Arc::new(this)
    }

    /// The newest edition that could be used. Does not wait: if it is time to look at the folder again, a thread does,
    /// and whoever asks next sees what it found.
    pub fn current(self: &Arc<Self>) -> Option<Arc<Edition>> {
        if self.is_due()
            && let Ok(runtime) = Handle::try_current()
        {
            let this = Arc::clone(self);
            drop(runtime.spawn_blocking(move || this.look()));
        }
        self.held.load().edition.clone()
    }

    /// The same, but waits for that thread.
    pub async fn newest(self: &Arc<Self>) -> Option<Arc<Edition>> {
        if self.is_due() {
            let this = Arc::clone(self);
            // What is held stays if the look panicked.
            let _ = tokio::task::spawn_blocking(move || this.look()).await;
        }
        self.held.load().edition.clone()
    }

    /// Whether it is time to look again; then nobody else does for [`LOOK_EVERY`].
    fn is_due(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = looked.elapsed() >= LOOK_EVERY;
        if due {
            *looked = Instant::now();
        }
        due
    }

    /// Reads the folder if it changed. Each state that cannot be used is reported once.
    fn look(&self) {
        let before = self.held.load_full();
        // Before the files are read: what changes in between is read again.
        let stamps = Stamps::of(&self.folder);
        if stamps.is_some() && stamps == before.stamps {
            return;
        }
        let folder = self.folder.display();
        let edition = match Edition::read(&self.folder) {
            Ok(edition) if edition.is_signed || before.edition.is_none() => {
                if !edition.is_signed {
                    tracing::warn!(%folder, "the catalogue's index is not signed: no cluster accepts it; run towline catalogue sign");
                }
                tracing::info!(%folder, revision = edition.index.revision, "catalogue read");
                Some(Arc::new(edition))
            }
            Ok(_) => {
                tracing::warn!(%folder, "the catalogue's index has changed and is not signed yet; the last signed one is served");
                before.edition.clone()
            }
            Err(error) => {
                // A folder whose files are gone has no stamps, and is reported when they go.
                if stamps.is_some() || before.stamps.is_some() || before.edition.is_none() {
                    let error = daemon::chain(&error);
                    tracing::warn!(%folder, error, "the catalogue cannot be used; the last good one is served, if there was one");
                }
                before.edition.clone()
            }
        };
        self.held.store(Arc::new(Held { stamps, edition }));
    }

    /// A chart's archive for a cluster, by its digest. The file is read while it is sent, by threads of their own. The
    /// first time it is compared with the digest before; one that is changed while it is sent breaks off.
    ///
    /// # Errors
    /// Why it is not handed out.
    pub async fn chart(&self, cluster: &ClusterId, digest: Sha256) -> Result<Live, ChartError> {
        let edition = self.held.load().edition.clone().ok_or(ChartError::Unknown)?;
        let reference = edition.charts.get(&digest).ok_or(ChartError::Unknown)?;
        let turn = Turn::of(&self.fetching, cluster.as_str()).ok_or(ChartError::BusyCluster)?;
        let place = self.place(cluster.subscription()).await.ok_or(ChartError::Busy)?;
        let path = self.folder.join(CHART_FOLDER).join(&reference.file);
        let stamp = match self.stamp(&edition, &path, digest).await {
            Ok(stamp) => stamp,
            Err((told, reason)) => {
                return Err(ChartError::File { path, name: reference.file.clone(), reason, told });
            }
        };
        let length = stamp.length();
        let sending = Sending { reads: Arc::clone(&self.reads), path, stamp, sent: 0, _held: (turn, place) };
        let chunks = stream::unfold(sending, |mut sending| async move { Some((sending.next().await?, sending)) });
        Ok(Live::new(chunks).of_length(length))
    }

    /// Waits for a place of a subscription, a bounded time.
    async fn place(&self, subscription: &str) -> Option<Place> {
        let taken = async {
            loop {
                if let Some(place) = self.places.take(subscription) {
                    return place;
                }
                tokio::time::sleep(PLACE_LOOK).await;
            }
        };
        tokio::time::timeout(PLACE_WAIT, taken).await.ok()
    }

    /// Which version of a chart's file it is that has this digest.
    async fn stamp(&self, edition: &Edition, path: &Path, digest: Sha256) -> Result<Stamp, FileFault> {
        // Held while a file is read: all others who want the same chart then know.
        let mut compared = self.compared.lock().await;
        let known = compared.get(&digest).copied();
        let file = path.to_owned();
        let look = move || {
            let stamp = Stamp::of(&file).map_err(|error| {
                // Whatever else there is to say of a file that is there, its reader says.
                let told = if file.exists() { UNREADABLE } else { "is not there" };
                (told, format!("cannot be served: {}", daemon::chain(&error)))
            })?;
            if !known.is_some_and(|known| known.is_same_content(&stamp)) {
                read_chart(&file, digest)?;
            }
            Ok::<_, FileFault>(stamp)
        };
        let looked = read_by_thread(&self.reads, move || Ok(look())).await;
        let stamp = looked.map_err(|reason| (UNREADABLE, reason))??;
        compared.retain(|digest, _| edition.charts.contains_key(digest));
        compared.insert(digest, stamp);
        Ok(stamp)
    }
}

/// Waits for a turn and reads on a thread of its own.
async fn read_by_thread<T: Send + 'static>(
    reads: &Arc<Semaphore>,
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    // Never closed: an error would let it begin without a turn.
    let turn = Arc::clone(reads).acquire_owned().await.ok();
    let reading = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        read()
    });
    reading.await.unwrap_or_else(|error| Err(error.to_string()))
}

/// A chart that is being sent.
struct Sending {
    reads: Arc<Semaphore>,
    path: PathBuf,
    stamp: Stamp,
    sent: u64,
    _held: (Turn, Place),
}

impl Sending {
    /// The next bytes; none at its end, and where it cannot be read on. Who reads it compares it with the digest.
    async fn next(&mut self) -> Option<Bytes> {
        let (path, stamp, sent) = (self.path.clone(), self.stamp, self.sent);
        let left = usize::try_from(stamp.length() - sent).unwrap_or(CHUNK).min(CHUNK);
        if left == 0 {
            return None;
        }
        let read = move || {
            let file = File::open(&path).map_err(|error| error.to_string())?;
            let is_same = Stamp::of_open(&file).is_ok_and(|now| now.is_same_content(&stamp));
            let mut bytes = vec![0; left];
            match file.read_exact_at(&mut bytes, sent) {
                Ok(()) if is_same => Ok(bytes),
                Ok(()) => Err("it was replaced".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        match read_by_thread(&self.reads, read).await {
            Ok(bytes) => {
                self.sent += left as u64;
                Some(bytes.into())
            }
            Err(why) => {
                tracing::warn!(path = %self.path.display(), why, "a chart of the catalogue cannot be sent to its end");
                None
            }
        }
    }
}

/// How many charts are being sent to which cluster.
type Fetching = Arc<Mutex<HashMap<String, usize>>>;

/// One of a cluster's, until it is dropped.
struct Turn {
    fetching: Fetching,
    cluster: String,
}

impl Turn {
    fn of(fetching: &Fetching, cluster: &str) -> Option<Self> {
        let mut all = fetching.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(cluster.to_owned()).or_default();
        if *count >= CHARTS_OF_CLUSTER {
            return None;
        }
        *count += 1;
        drop(all);
        Some(Self { fetching: Arc::clone(fetching), cluster: cluster.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&self.cluster) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&self.cluster)),
        }
    }
}

/// Compares a chart's file with its digest.
fn read_chart(path: &Path, digest: Sha256) -> Result<(), FileFault> {
    const ANOTHER: &str = "is not the one that the index names";
    let bytes = read(path, CHART_BYTES)
        .map_err(|error| (UNREADABLE, format!("cannot be served: {}", daemon::chain(&error))))?;
    if Sha256::of(&bytes) == digest { Ok(()) } else { Err((ANOTHER, ANOTHER.to_owned())) }
}

/// A whole file, unless it has more bytes than that.
fn read(path: &Path, most: usize) -> Result<Vec<u8>, CatalogueError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|source| CatalogueError::Read { path: path.to_owned(), source })?;
    if bytes.len() > most {
        return Err(CatalogueError::TooLarge { path: path.to_owned(), most });
    }
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use ::catalogue::{key::SigningKey, testing};

    use super::*;

    /// Makes a signed catalogue of the type `example.web` in a folder.
    pub fn make(folder: &Path, versions: &[(&str, &[&str])], change: impl FnOnce(&mut Index)) -> SigningKey {
        let key = SigningKey::generate().unwrap();
        fs::create_dir_all(folder.join(CHART_FOLDER)).unwrap();
        for (version, _) in versions {
            let chart = testing::chart(&testing::metadata("web", version), &[]);
            fs::write(folder.join(CHART_FOLDER).join(format!("web-{version}.tgz")), chart).unwrap();
        }
        let mut index = testing::index(versions);
        index.keys = vec![key.public()];
        change(&mut index);
        sign(folder, &index, &key);
        key
    }

    fn sign(folder: &Path, index: &Index, key: &SigningKey) {
        let bytes = index.to_bytes().unwrap();
        let pem = key.to_pem().unwrap();
        let signatures = Signatures::make(&bytes, &[SigningKey::from_pem(pem.as_bytes()).unwrap()]);
        fs::write(folder.join(INDEX_FILE), bytes).unwrap();
        fs::write(folder.join(SIGNATURE_FILE), signatures.to_bytes().unwrap()).unwrap();
    }

    fn revision(catalogue: &Catalogue) -> Option<u64> {
        catalogue.held.load().edition.as_ref().map(|edition| edition.index.revision)
    }

    #[test]
    fn changed_index_is_taken_once_it_is_signed() {
        let folder = tempfile::tempdir().unwrap();
        let key = make(folder.path(), &[("1.0.0", &["Stable"])], |_| {});
        let catalogue = Catalogue::open(folder.path().to_owned());
        assert_eq!(revision(&catalogue), Some(0));
        let mut index = Index::clone(&catalogue.held.load().edition.as_ref().unwrap().index);
        index.revision = 7;
        fs::write(folder.path().join(INDEX_FILE), index.to_bytes().unwrap()).unwrap();
        catalogue.look();
        assert_eq!(revision(&catalogue), Some(0), "not signed yet");
        sign(folder.path(), &index, &key);
        catalogue.look();
        assert_eq!(revision(&catalogue), Some(7));
        fs::write(folder.path().join(INDEX_FILE), "{").unwrap();
        catalogue.look();
        assert_eq!(revision(&catalogue), Some(7), "the last good one stays");
        fs::remove_file(folder.path().join(INDEX_FILE)).unwrap();
        catalogue.look();
        assert_eq!(revision(&catalogue), Some(7));
    }

    #[test]
    fn folder_that_is_no_catalogue_says_which_file_and_why() {
        let folder = tempfile::tempdir().unwrap();
        let why = |folder: &Path| daemon::chain(&Edition::read(folder).err().unwrap());
        assert!(why(folder.path()).contains("index.json: No such file"), "{}", why(folder.path()));
        make(folder.path(), &[("1.0.0", &["Stable"])], |_| {});
        fs::write(folder.path().join(INDEX_FILE), "{}").unwrap();
        assert!(why(folder.path()).contains("is not a catalogue's index: the index is not readable"));
        make(folder.path(), &[("1.0.0", &["Stable"])], |_| {});
        fs::write(folder.path().join(SIGNATURE_FILE), vec![b' '; SIGNATURE_BYTES + 1]).unwrap();
        assert!(why(folder.path()).contains("index.sig has more than"));
    }

    /// Clusters that have their charts from a registry take the index from here all the same.
    #[test]
    fn x5_index_is_served_without_a_folder_of_charts() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), &[("1.0.0", &["Stable"])], |_| {});
        fs::remove_dir_all(folder.path().join(CHART_FOLDER)).unwrap();
        assert_eq!(revision(&Catalogue::open(folder.path().to_owned())), Some(0));
    }

    fn cluster_of(subscription: u32, name: u32) -> ClusterId {
        let id = format!(
            "/subscriptions/00000000-0000-0000-0000-{subscription:012}/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c{name}"
        );
        id.parse().unwrap()
    }

    async fn sent(chart: Live) -> Vec<u8> {
        let body = crate::answers::Body::Live(Box::new(chart));
        http_body_util::BodyExt::collect(body).await.unwrap().to_bytes().to_vec()
    }

    #[tokio::test]
    async fn chart_of_the_index_is_read_while_it_is_sent_and_no_other_one() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), &[("1.0.0", &["Stable"]), ("1.1.0", &["Stable"])], |index| {
            let large = vec![7; 3 * CHUNK + 1];
            fs::write(folder.path().join(CHART_FOLDER).join("web-1.0.0.tgz"), &large).unwrap();
            let release = index.types[0].versions.iter_mut().find(|one| one.chart.file == "web-1.0.0.tgz").unwrap();
            release.chart.sha256 = Sha256::of(&large);
        });
        let catalogue = Catalogue::open(folder.path().to_owned());
        let file = folder.path().join(CHART_FOLDER).join("web-1.0.0.tgz");
        let content = fs::read(&file).unwrap();
        let digest = Sha256::of(&content);
        let (c, d) = (cluster_of(1, 1), cluster_of(1, 2));
        let first = catalogue.chart(&c, digest).await.unwrap();
        let second = catalogue.chart(&c, digest).await.unwrap();
        // A cluster that does not take what it asked for keeps no other from its charts.
        let refused = catalogue.chart(&c, digest).await.err().unwrap();
        assert!(matches!(refused, ChartError::BusyCluster), "{refused}");
        assert_eq!(sent(catalogue.chart(&d, digest).await.unwrap()).await, content);
        assert_eq!(sent(first).await, content);
        assert_eq!(catalogue.places.taken(), 1);
        fs::write(&file, "another").unwrap();
        assert_eq!(sent(second).await, b"", "nothing of another file is sent");
        assert_eq!((catalogue.places.taken(), catalogue.fetching.lock().unwrap().len()), (0, 0));
        let refused = catalogue.chart(&c, digest).await.err().unwrap();
        let told = |refused: &ChartError| match refused {
            ChartError::File { name, told, .. } => format!("{name} {told}"),
            other => panic!("{other}"),
        };
        assert_eq!(told(&refused), "web-1.0.0.tgz is not the one that the index names");
        fs::remove_file(&file).unwrap();
        let refused = catalogue.chart(&c, digest).await.err().unwrap();
        assert_eq!(told(&refused), "web-1.0.0.tgz is not there", "without a path of this machine");
        assert!(refused.to_string().contains(file.to_str().unwrap()), "which the log has: {refused}");
        assert!(matches!(catalogue.chart(&c, Sha256::of(b"x")).await, Err(ChartError::Unknown)));
    }

    /// Four clusters that read slowly had all places, and no other one got a chart.
    #[tokio::test(start_paused = true)]
    async fn e2_clusters_that_do_not_read_their_charts_keep_no_subscription_from_its_own() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), &[("1.0.0", &["Stable"])], |_| {});
        let catalogue = Catalogue::open(folder.path().to_owned());
        let content = fs::read(folder.path().join(CHART_FOLDER).join("web-1.0.0.tgz")).unwrap();
        let digest = Sha256::of(&content);
        let mut held = Vec::new();
        for subscription in 0..8 {
            for name in 0.. {
                match catalogue.chart(&cluster_of(subscription, name), digest).await {
                    Ok(chart) => held.push(chart),
                    Err(ChartError::Busy) => break,
                    Err(other) => panic!("{other}"),
                }
            }
        }
        assert!(held.len() > CHARTS as usize / 2 && held.len() < CHARTS as usize, "{}", held.len());
        assert_eq!(sent(catalogue.chart(&cluster_of(8, 0), digest).await.unwrap()).await, content);
    }
}
