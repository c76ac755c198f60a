//! The archive: a zip of texts, stored as they are, with private keys and tokens taken out (docs/features.md B1).

use std::{collections::BTreeMap, io::Write, path::Path};

use daemon::redact::redact;
use gateway::files;

/// Bytes of all texts at most; what comes later is left out, by name.
const BYTES: usize = 64 * 1024 * 1024;
const VERSION: u16 = 20;
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
/// 1 January 1980: the times of the files say nothing.
const DATE: u16 = 0x21;

/// Texts by name.
#[derive(Default)]
pub struct Bundle {
    texts: BTreeMap<String, String>,
    bytes: usize,
}

impl Bundle {
    /// Adds a text without its secrets.
    pub fn put(&mut self, name: &str, text: &str) {
        let text = redact(text);
        let fits = self.bytes + text.len() <= BYTES;
        let text = if fits { text } else { format!("left out: the archive holds {BYTES} bytes at most\n") };
        self.bytes += text.len();
        // Names are ours or Kubernetes', which has no slashes in them.
        self.texts.insert(name.replace("..", "_"), text);
    }

    /// Writes the archive, for its owner alone.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        Ok(files::write_private(file, &self.zip()?)?)
    }

    fn zip(&self) -> std::io::Result<Vec<u8>> {
        let (mut out, mut central) = (Vec::new(), Vec::new());
        for (name, text) in &self.texts {
            let offset = u32::try_from(out.len()).map_err(std::io::Error::other)?;
            let length = u32::try_from(text.len()).map_err(std::io::Error::other)?;
            let name_length = u16::try_from(name.len()).map_err(std::io::Error::other)?;
            // Version, flags (names are UTF-8), stored, time, date.
            let mut common: Vec<u8> =
                [VERSION, 1 << 11, 0, 0, DATE].iter().flat_map(|word| word.to_le_bytes()).collect();
            for word in [crc32(text.as_bytes()), length, length] {
                common.extend(word.to_le_bytes());
            }
            common.extend(name_length.to_le_bytes());
            common.extend(0u16.to_le_bytes());
            out.write_all(&LOCAL.to_le_bytes())?;
            out.write_all(&common)?;
            out.write_all(name.as_bytes())?;
            out.write_all(text.as_bytes())?;
            central.write_all(&CENTRAL.to_le_bytes())?;
            central.write_all(&VERSION.to_le_bytes())?;
            central.write_all(&common)?;
            // No comment, first disk, no attributes.
            central.write_all(&[0; 10])?;
            central.write_all(&offset.to_le_bytes())?;
            central.write_all(name.as_bytes())?;
        }
        let count = u16::try_from(self.texts.len()).map_err(std::io::Error::other)?;
        let size = u32::try_from(central.len()).map_err(std::io::Error::other)?;
        let offset = u32::try_from(out.len()).map_err(std::io::Error::other)?;
        out.append(&mut central);
        out.write_all(&END.to_le_bytes())?;
        for word in [0, 0, count, count] {
            out.write_all(&word.to_le_bytes())?;
        }
        out.write_all(&size.to_le_bytes())?;
        out.write_all(&offset.to_le_bytes())?;
        out.write_all(&0u16.to_le_bytes())?;
        Ok(out)
    }
}

/// CRC-32 of ISO 3309, as zip has it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_the_archive_is_one_that_others_read() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let mut bundle = Bundle::default();
        bundle.put("logs/a.txt", "hello\n");
        bundle.put("b.txt", "");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.zip");
        bundle.write(&file).unwrap();
        let script = "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None; print(z.namelist(), z.read('logs/a.txt'))";
        let out = std::process::Command::new("python3").args(["-c", script]).arg(&file).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "['b.txt', 'logs/a.txt'] b'hello\\n'\n", "{out:?}");
    }
}
