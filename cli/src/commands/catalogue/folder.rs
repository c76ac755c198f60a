//! The files of a catalogue. Each is replaced whole and read within its bound.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use catalogue::{
    CHART_FOLDER, INDEX_FILE, SIGNATURE_FILE,
    index::{ChartReference, Index},
    limits::{ARCHIVE_BYTES, INDEX_BYTES, SIGNATURE_BYTES},
};
use gateway::files::{self, EditLock};

use crate::failure::{Failure, Hint, Outcome};

/// The folder of a catalogue.
pub struct Folder(PathBuf);

impl Folder {
    /// One that is there, or is to be made.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether no catalogue is in it yet.
    pub fn must_be_new(&self) -> Outcome<()> {
        let index = self.0.join(INDEX_FILE);
        if index.exists() {
            return Err(Failure::from(anyhow!("{} is there already: this is a catalogue", index.display()))
                .hint("name another folder: --catalogue DIR"));
        }
        Ok(())
    }

    /// Makes the folder with an index that is not signed.
    pub fn create(&self, index: &Index) -> Outcome<()> {
        let charts = self.0.join(CHART_FOLDER);
        fs::create_dir_all(&charts).with_context(|| format!("cannot make the folder {}", charts.display()))?;
        let _lock = EditLock::take(&self.0.join(INDEX_FILE))?;
        self.must_be_new()?;
        self.write_index(index).map(|_| ())
    }

    /// Reads the index, without a lock.
    pub fn index(&self) -> Outcome<Index> {
        let bytes = self.index_bytes()?;
        Ok(Index::parse(&bytes).with_context(|| self.0.join(INDEX_FILE).display().to_string())?)
    }

    /// The index, for a change. Nobody else changes the catalogue until the lock is dropped.
    pub fn edit(&self) -> Outcome<(EditLock, Index)> {
        // No lock is made where no catalogue is.
        self.index_bytes()?;
        let lock = EditLock::take(&self.0.join(INDEX_FILE))?;
        Ok((lock, self.index()?))
    }

    /// The exact bytes of the index.
    pub fn index_bytes(&self) -> Outcome<Vec<u8>> {
        let read = read(&self.0.join(INDEX_FILE), INDEX_BYTES as u64);
        read.hint(|| "is it a catalogue? --catalogue DIR names it, towline catalogue init makes one".to_owned())
    }

    /// Replaces the index, if every field is as it should be, and returns its bytes.
    pub fn write_index(&self, index: &Index) -> Outcome<Vec<u8>> {
        let bytes = index.to_bytes().map_err(Failure::usage)?;
        files::write_public(&self.0.join(INDEX_FILE), &bytes)?;
        Ok(bytes)
    }

    /// The file of signatures.
    pub fn signatures(&self) -> Outcome<Vec<u8>> {
        let read = read(&self.0.join(SIGNATURE_FILE), SIGNATURE_BYTES as u64);
        read.hint(|| "towline catalogue sign makes it".to_owned())
    }

    /// Replaces the file of signatures.
    pub fn write_signatures(&self, bytes: &[u8]) -> Outcome<()> {
        Ok(files::write_public(&self.0.join(SIGNATURE_FILE), bytes)?)
    }

    /// The file of a chart.
    pub fn chart(&self, chart: &ChartReference) -> PathBuf {
        self.0.join(CHART_FOLDER).join(&chart.file)
    }
}

/// Reads a chart's archive.
pub fn read_chart(path: &Path) -> Outcome<Vec<u8>> {
    read(path, ARCHIVE_BYTES)
}

/// Reads a whole file, unless it has more bytes than that.
pub fn read(path: &Path, most: u64) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() as u64 > most {
        return Err(anyhow!("{} has more than {most} bytes", path.display()).into());
    }
    Ok(bytes)
}
