//! Variants of our images: the same archive with another tag and other settings, given to the node.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context;
use serde_json::{Value, json};

use crate::programs::{root, run, scratch};

/// How long an archive of tens of megabytes may take to be packed, unpacked or hashed.
const PACKING: Duration = Duration::from_secs(60);

/// An unpacked docker archive of one image.
pub struct Image {
    folder: PathBuf,
    manifest: Value,
    /// The image's configuration: what is changed of it is part of the variant.
    pub config: Value,
}

impl Image {
    /// Unpacks an archive.
    pub fn unpack(archive: &Path) -> anyhow::Result<Self> {
        let folder = scratch("image");
        let mut unpack = Command::new("tar");
        unpack.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&folder);
        run(&mut unpack, PACKING)?.ok()?;
        let read = |name: &str| -> anyhow::Result<Value> {
            Ok(serde_json::from_slice(&std::fs::read(folder.join(name)).with_context(|| name.to_owned())?)?)
        };
        let manifest = read("manifest.json")?;
        let name = manifest[0]["Config"].as_str().context("the archive names no configuration")?.to_owned();
        let config = read(&name)?;
        std::fs::remove_file(folder.join(&name))?;
        Ok(Self { folder, manifest, config })
    }

    /// Gives the node of the real cluster the variant, under the image's own name with this tag.
    pub fn load_as(mut self, tag: &str) -> anyhow::Result<()> {
        let changed = self.folder.join("config");
        std::fs::write(&changed, self.config.to_string())?;
        let name = format!("{}.json", digest(&changed)?);
        std::fs::rename(changed, self.folder.join(&name))?;
        let tagged = self.manifest[0]["RepoTags"][0].as_str().context("the image has no name")?;
        let repository = tagged.rsplit_once(':').context("the image has no tag")?.0.to_owned();
        self.manifest[0]["Config"] = name.into();
        self.manifest[0]["RepoTags"] = json!([format!("{repository}:{tag}")]);
        std::fs::write(self.folder.join("manifest.json"), self.manifest.to_string())?;
        // The older form of the manifest, which names the image too.
        let _ = std::fs::remove_file(self.folder.join("repositories"));
        let packed = scratch("image-packed").join("image.tar");
        let mut pack = Command::new("tar");
        pack.arg("--create").arg("--file").arg(&packed).arg("--directory").arg(&self.folder).arg(".");
        run(&mut pack, PACKING)?.ok()?;
        let mut load = Command::new(root().join("tests/cluster/cluster"));
        run(load.arg("load-image").arg(&packed), Duration::from_secs(120))?.ok()?;
        std::fs::remove_file(packed)?;
        std::fs::remove_dir_all(self.folder)?;
        Ok(())
    }
}

/// The SHA-256 digest of a file, in hex.
fn digest(file: &Path) -> anyhow::Result<String> {
    let sum = run(Command::new("sha256sum").arg(file), PACKING)?.ok()?;
    Ok(sum.split_whitespace().next().context("no digest")?.to_owned())
}
