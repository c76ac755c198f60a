//! The signed catalogue of charts, as its owner uses it (docs/features.md E2).
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown, symlink},
        process::ExitStatusExt,
    },
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use catalogue::testing::{chart, metadata};
use gateway::files::EditLock;
use serde_json::{Value, json};
use support::{
    site::{failed, mode},
    towline,
};
use tempfile::TempDir;

/// A folder in which commands run, with charts in it.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        for version in ["1.2.3", "1.3.0", "2.0.0"] {
            this.write(&format!("web-{version}.tgz"), &chart(&metadata("web", version), &[]));
        }
        this
    }

    /// With a signed catalogue of one version in `c`, by `k`.
    fn signed() -> Self {
        let this = Self::new();
        this.ok(&["init", "--key", "k"]);
        this.ok(&["add", "web-1.2.3.tgz", "--type", "example.web", "--train", "Stable"]);
        this.ok(&["sign", "--key", "k"]);
        this
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let all = [&["catalogue"], args, &["--catalogue", "c"]].concat();
        towline(&all).current_dir(self.0.path()).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        assert!(!error.contains("PRIVATE KEY") && !output.stdout.windows(7).any(|part| part == b"PRIVATE"));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).unwrap()
    }

    fn fails(&self, code: i32, args: &[&str]) -> String {
        failed(code, self.run(args), args)
    }

    fn index(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("c/index.json")).unwrap()).unwrap()
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut index = self.index();
        edit(&mut index);
        self.write("c/index.json", &serde_json::to_vec(&index).unwrap());
    }
}

#[test]
fn e2_catalogue_is_made_signed_listed_and_verified() {
    let place = Place::new();
    let made = place.json(&["init", "--key", "k"]);
    assert_eq!((made["revision"].as_u64(), mode(&place.path("k"))), (Some(0), 0o600));
    let options = "--publisher Example --description Web --scope namespace --scope cluster --release-namespace web \
        --multiple-instances --distribution k3s --unsupported-kubernetes <1.28 --platform linux/arm64 --setting a.* \
        --setting replicas=1,2 --train Stable --type example.web";
    let options: Vec<_> = options.split_whitespace().collect();
    let added = place.json(&[&["add", "web-1.2.3.tgz"], options.as_slice()].concat());
    assert_eq!((&added["version"], &added["chart"]["file"]), (&json!("1.2.3"), &json!("web-1.2.3.tgz")));
    place.ok(&["add", "web-1.3.0.tgz", "--type", "example.web", "--train", "Preview"]);
    let kind = &place.index()["types"][0];
    assert_eq!(
        kind["supportedScopes"],
        json!({"scopes": ["namespace", "cluster"], "defaultScope": "namespace",
            "clusterScopeSettings": {"allowMultipleInstances": true, "defaultReleaseNamespace": "web"}})
    );
    assert_eq!(kind["allowedSettings"], json!([{"key": "a.*"}, {"key": "replicas", "values": ["1", "2"]}]));
    assert_eq!(kind["versions"][1]["unsupportedKubernetesVersions"], json!([{"unsupportedVersions": ["<1.28"]}]));
    assert_eq!(kind["versions"][1]["supportedDistributions"], json!(["k3s"]));
    let table = place.ok(&["list"]);
    assert_eq!(
        table,
        "TYPE         VERSION  TRAINS   DEPRECATED  KUBERNETES  PLATFORMS    CHART\n\
         example.web  1.3.0    Preview  false                                web-1.3.0.tgz\n\
         example.web  1.2.3    Stable   false                   linux/arm64  web-1.2.3.tgz"
    );
    assert_eq!(place.ok(&["list", "--train", "stable", "-o", "tsv", "--query", "[].version"]), "1.2.3");
    assert_eq!(place.ok(&["list", "--latest", "--query", "[].version", "-o", "tsv"]), "1.3.0");
    for (option, value) in [("--kubernetes", "v1.27.3+k3s1"), ("--distribution", "aks"), ("--platform", "linux/amd64")]
    {
        let found = place.ok(&["list", "--train", "Stable", "-o", "tsv", option, value]);
        assert_eq!(found, "", "{option}");
    }
    let fits =
        ["--kubernetes", "1.31.0", "--distribution", "k3s", "--platform", "linux/amd64", "--platform", "linux/arm64"];
    assert_eq!(place.ok(&[&["list", "--query", "length(@)"], &fits[..]].concat()), "2");
    assert!(place.fails(1, &["list", "--type", "example.web", "--train", "x"]).contains("there is no release train"));
    let signed = place.json(&["sign", "--key", "k", "--expires", "90d"]);
    assert_eq!((signed["revision"].as_u64(), signed["charts"].as_u64()), (Some(1), Some(2)));
    assert!(signed["expires"].as_str() > signed["made"].as_str());
    let id = made["catalogue"].as_str().unwrap();
    assert_eq!(place.json(&["verify", "--key", "k.pub", "--id", id]), signed);
    assert_eq!(place.json(&["sign", "--key", "k"])["revision"], 2);
    place.ok(&["remove", "--type", "example.web", "--version", "v1.3.0"]);
    assert!(!place.path("c/charts/web-1.3.0.tgz").exists() && place.path("c/charts/web-1.2.3.tgz").exists());
    place.ok(&["remove", "--type", "example.web"]);
    assert_eq!((place.ok(&["list"]).as_str(), fs::read_dir(place.path("c/charts")).unwrap().count()), ("", 0));
}

#[test]
fn e2_catalogue_that_was_changed_is_refused() {
    let place = Place::signed();
    let verify = ["verify", "--key", "k.pub"];
    let signatures = fs::read(place.path("c/index.sig")).unwrap();
    let index = fs::read(place.path("c/index.json")).unwrap();
    // A chart, the index, the signatures, the key, the catalogue.
    place.write("c/charts/web-1.2.3.tgz", &chart(&metadata("web", "1.2.3"), &[("web/templates/x.yaml", b"kind: Pod")]));
    let error = place.fails(1, &verify);
    assert!(error.contains("example.web 1.2.3: the chart has") && error.contains("error: 1 of 1 charts"), "{error}");
    fs::remove_file(place.path("c/charts/web-1.2.3.tgz")).unwrap();
    assert!(place.fails(1, &verify).contains("example.web 1.2.3: cannot read"));
    assert!(place.fails(1, &["sign", "--key", "k"]).contains("1 of 1 charts"), "nothing broken is signed");
    place.write("c/charts/web-1.2.3.tgz", &fs::read(place.path("web-1.2.3.tgz")).unwrap());
    place.ok(&verify);
    place.edit(|index| index["types"][0]["publisher"] = json!("Mallory"));
    assert!(place.fails(1, &verify).contains("none of the pinned keys signed the index"));
    place.edit(|index| index["types"][0]["more"] = json!("x"));
    assert!(place.fails(1, &["list"]).contains("unknown field `more`"));
    place.write("c/index.json", &index);
    place.write("c/index.sig", &signatures[..signatures.len() / 2]);
    assert!(place.fails(1, &verify).contains("the file of signatures is not readable"));
    fs::remove_file(place.path("c/index.sig")).unwrap();
    assert!(place.fails(1, &verify).contains("hint: towline catalogue sign"));
    place.write("c/index.sig", &signatures);
    place.ok(&["keys", "new", "other"]);
    assert!(place.fails(1, &["verify", "--key", "other.pub"]).contains("none of the pinned keys"));
    let other = ["verify", "--key", "k.pub", "--id", "00000000000000000000000000000000"];
    assert!(place.fails(1, &other).contains("the index is of the catalogue"));
    assert!(place.fails(2, &["verify", "--key", "k.pub", "--id", "x"]).contains("32 lower-case hex digits"));
    assert!(place.fails(2, &["verify"]).contains("--key"));
}

#[test]
fn e2_older_index_is_refused_by_what_a_cluster_keeps() {
    let place = Place::signed();
    let copy = |from: &str, to: &str| {
        for file in ["index.json", "index.sig"] {
            fs::copy(place.path(from).join(file), place.path(to).join(file)).unwrap();
        }
    };
    fs::create_dir(place.path("old")).unwrap();
    fs::create_dir(place.path("fork")).unwrap();
    copy("c", "old");
    place.ok(&["verify", "--key", "k.pub", "--pins", "pins"]);
    place.ok(&["add", "web-1.3.0.tgz", "--type", "example.web", "--train", "Stable"]);
    place.ok(&["sign", "--key", "k"]);
    let verify = ["verify", "--pins", "pins"];
    place.ok(&verify);
    copy("c", "fork");
    copy("old", "c");
    let replayed = place.fails(1, &verify);
    assert!(replayed.contains("the index has revision 1, and 2 has been seen"), "{replayed}");
    // A copy of the old one, signed as the second revision too.
    place.ok(&["sign", "--key", "k"]);
    assert!(place.fails(1, &verify).contains("two different indexes of revision 2"));
    copy("fork", "c");
    place.ok(&verify);
    // What was seen is kept though a chart is broken.
    place.ok(&["sign", "--key", "k"]);
    copy("c", "fork");
    fs::remove_file(place.path("c/charts/web-1.2.3.tgz")).unwrap();
    assert!(place.fails(1, &verify).contains("1 of 2 charts"));
    copy("old", "c");
    assert!(place.fails(1, &verify).contains("and 3 has been seen"));
    copy("fork", "c");
    place.write("c/charts/web-1.2.3.tgz", &fs::read(place.path("web-1.2.3.tgz")).unwrap());
    let output = place.run(&["verify", "--pins", "pins", "--key", "k.pub"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("--key and --id are not used"), "{said}");
    // Pins that cannot be looked at are not none.
    symlink("loop", place.path("loop")).unwrap();
    assert!(place.fails(1, &["verify", "--pins", "loop", "--key", "k.pub"]).contains("cannot read loop"));
    place.write("pins", b"[]");
    assert!(place.fails(1, &verify).contains("pins is not a file of pins"));
}

#[test]
fn e2_key_is_changed_when_the_old_one_signed_the_new_one() {
    let place = Place::signed();
    let (old, pins) = (["verify", "--key", "k.pub"], ["verify", "--pins", "pins"]);
    place.ok(&[&old[..], &["--pins", "pins"]].concat());
    let next = place.json(&["keys", "new", "next"]);
    assert_eq!(mode(&place.path("next")), 0o600);
    let foreign = place.fails(1, &["sign", "--key", "next"]);
    assert!(foreign.contains("none of these keys may sign") && foreign.contains("hint: "), "{foreign}");
    assert_eq!(place.json(&["keys", "add", "next.pub"])[1]["id"], next["id"]);
    let first = place.json(&["keys", "list"])[0]["id"].as_str().unwrap().to_owned();
    assert!(place.fails(2, &["keys", "remove", &first[..7]]).contains("is not the id of one key"));
    place.ok(&["keys", "remove", &first[..8]]);
    assert_eq!(place.json(&["keys", "list"]).as_array().unwrap().len(), 1);
    place.ok(&["sign", "--key", "next"]);
    assert!(place.fails(1, &pins).contains("none of the pinned keys"), "the old key has not signed it");
    let both = place.ok(&["sign", "--key", "next", "--key", "k"]);
    assert!(both.contains(&first));
    place.ok(&pins);
    place.ok(&old);
    // From here on the old key signs for clusters that have not seen this.
    place.ok(&["sign", "--key", "next"]);
    place.ok(&pins);
    assert!(place.fails(1, &old).contains("none of the pinned keys"));
    let last = place.fails(2, &["keys", "remove", next["id"].as_str().unwrap()]);
    assert!(last.contains("keys: 0 entries"), "{last}");
}

#[test]
fn e2_private_key_lies_outside_and_is_for_its_owner_alone() {
    let place = Place::new();
    fs::create_dir(place.path("c")).unwrap();
    for inside in ["c/k", "c/../c/k"] {
        assert!(place.fails(2, &["init", "--key", inside]).contains("would be in the catalogue"), "{inside}");
    }
    assert!(place.fails(1, &["init", "--key", "none/k"]).contains("the folder of the key none/k"));
    place.ok(&["init", "--key", "k"]);
    assert!(place.fails(1, &["init", "--key", "k"]).contains("this is a catalogue"));
    assert!(place.fails(2, &["keys", "new", "c/charts/k"]).contains("would be in the catalogue"));
    assert!(place.fails(1, &["keys", "new", "k"]).contains("no file is written over"));
    fs::set_permissions(place.path("k"), fs::Permissions::from_mode(0o640)).unwrap();
    let open = place.fails(1, &["sign", "--key", "k"]);
    assert!(
        open.contains("others may read the private key k (mode 640)") && open.contains("hint: chmod 600"),
        "{open}"
    );
    fs::set_permissions(place.path("k"), fs::Permissions::from_mode(0o600)).unwrap();
    // Only root can give it away, and read it after that.
    if chown(place.path("k"), Some(12345), None).is_ok() {
        assert!(place.fails(1, &["sign", "--key", "k"]).contains("the private key k is another user's (uid 12345)"));
        chown(place.path("k"), Some(0), None).unwrap();
    }
    place.ok(&["sign", "--key", "k"]);
    // A key without its public half is not left.
    place.write("half.pub", b"");
    assert!(place.fails(1, &["keys", "new", "half"]).contains("cannot write the key half.pub"));
    assert!(!place.path("half").exists());
    fs::remove_file(place.path("half.pub")).unwrap();
    place.ok(&["keys", "new", "half"]);
    place.write("not", b"not a key");
    fs::set_permissions(place.path("not"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(place.fails(1, &["sign", "--key", "not"]).contains("it is not an Ed25519 private key"));
    assert!(place.fails(1, &["keys", "add", "k"]).contains("it is not an Ed25519 public key"));
    // Nothing of it is in the catalogue.
    let key = fs::read_to_string(place.path("k")).unwrap();
    let key = key.lines().nth(1).unwrap();
    for file in ["k.pub", "c/index.json"] {
        assert!(!fs::read_to_string(place.path(file)).unwrap().contains(key));
    }
}

#[test]
fn e2_chart_that_cannot_be_installed_is_not_taken() {
    let place = Place::signed();
    place.write("not.tgz", b"not a chart");
    place.write("library.tgz", &chart(&metadata("web", "9.0.0").replace("application", "library"), &[]));
    place.write("other.tgz", &chart(&metadata("web", "1.2.3"), &[("web/values.yaml", b"")]));
    let add = |chart: &str, more: &[&str]| {
        let args = [&["add", chart, "--type", "example.web", "--train", "Stable"], more].concat();
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let before = place.index();
    for (code, args, reason) in [
        (1, add("not.tgz", &[]), "it is not a tar archive compressed with gzip"),
        (1, add("library.tgz", &[]), "only an application can be installed"),
        (1, add("other.tgz", &[]), "a version never changes"),
        (1, add("none.tgz", &[]), "cannot read none.tgz"),
        (2, add("web-1.3.0.tgz", &["--platform", "arm64"]), "a platform is such as linux/amd64"),
        (2, add("web-1.3.0.tgz", &["--train", "stable"]), "holds a train twice"),
        (2, add("web-1.3.0.tgz", &["--release-namespace", "No"]), "not a name of a namespace"),
        (2, add("web-1.3.0.tgz", &["--unsupported-kubernetes", "new"]), "is not a version constraint"),
        (2, add("web-1.3.0.tgz", &["--scope", "planet"]), "possible values: cluster, namespace"),
    ] {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let error = place.fails(code, &args);
        assert!(error.contains(reason) && !error.contains("catalogue remove"), "{error}");
    }
    let elsewhere = place.fails(1, &["add", "other.tgz", "--type", "other.web", "--train", "Stable"]);
    assert!(elsewhere.contains("example.web 1.2.3 is in the catalogue with another chart web"), "{elsewhere}");
    let bad_name = place.fails(2, &["add", "web-1.3.0.tgz", "--type", "Example Web", "--train", "Stable"]);
    assert!(bad_name.contains("lower-case letters"), "{bad_name}");
    assert!(place.fails(2, &["add", "web-1.3.0.tgz", "--type", "example.web"]).contains("--train"));
    assert_eq!((place.index(), place.path("c/charts/web-1.3.0.tgz").exists()), (before, false));
    assert!(place.fails(1, &["remove", "--type", "x"]).contains("no extension type \"x\""));
    assert!(place.fails(1, &["remove", "--type", "example.web", "--version", "9.0.0"]).contains("no version 9.0.0"));
}

/// A command that waits for the lock of the catalogue, once it does.
fn waiting(place: &Place, args: &[&str]) -> Child {
    let mut command = towline(&[&["catalogue"], args, &["--catalogue", "c"]].concat());
    let child = command.current_dir(place.0.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let files = format!("/proc/{}/fd", child.id());
    let end = Instant::now() + Duration::from_secs(30);
    let waits = || {
        let files = fs::read_dir(&files).unwrap().filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        files.into_iter().any(|file| file.ends_with("c/index.json.lock"))
    };
    while !waits() {
        assert!(Instant::now() < end, "it does not wait");
        sleep(Duration::from_millis(20));
    }
    child
}

#[test]
fn e2_two_changes_at_once_are_both_kept() {
    let place = Place::signed();
    place.ok(&["keys", "new", "next"]);
    let lock = EditLock::take(&place.path("c/index.json")).unwrap();
    let mut all = vec![
        waiting(&place, &["add", "web-1.3.0.tgz", "--type", "example.web", "--train", "Stable"]),
        waiting(&place, &["remove", "--type", "example.web", "--version", "1.2.3"]),
        waiting(&place, &["keys", "add", "next.pub"]),
        waiting(&place, &["add", "web-2.0.0.tgz", "--type", "example.web", "--train", "Stable"]),
    ];
    // Readers do not wait.
    assert_eq!(place.ok(&["list", "-o", "tsv", "--query", "[].version"]), "1.2.3");
    drop(lock);
    for child in &mut all {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(place.ok(&["list", "-o", "tsv", "--query", "[].version"]), "2.0.0\n1.3.0");
    assert_eq!(place.index()["keys"].as_array().unwrap().len(), 2);
    // No lock is made where no catalogue is.
    fs::create_dir(place.path("none")).unwrap();
    place.fails(1, &["remove", "--type", "x"]);
    let nowhere = towline(&["catalogue", "remove", "--type", "x", "--catalogue", "none"]);
    assert!({ nowhere }.current_dir(place.0.path()).output().unwrap().status.code() == Some(1));
    assert_eq!(fs::read_dir(place.path("none")).unwrap().count(), 0);
}

#[test]
fn e2_ctrl_c_ends_a_command_of_the_catalogue() {
    let place = Place::signed();
    let before = place.index();
    let _lock = EditLock::take(&place.path("c/index.json")).unwrap();
    let mut child = waiting(&place, &["add", "web-1.3.0.tgz", "--type", "example.web", "--train", "Stable"]);
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let end = Instant::now() + Duration::from_secs(30);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < end => sleep(Duration::from_millis(20)),
            None => {
                child.kill().unwrap();
                panic!("it does not end");
            }
        }
    };
    assert_eq!((status.signal(), place.index()), (Some(2), before));
}

/// Commands of the guide, in their order.
#[test]
fn e2_commands_of_the_guide_work() {
    let place = Place::new();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/catalogue.md");
    let guide = fs::read_to_string(guide).unwrap();
    let blocks: Vec<_> = guide.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 3);
    let program = Path::new(env!("CARGO_BIN_EXE_towline")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", program.display());
    let output = Command::new("sh")
        .args(["-euxc", &blocks.concat()])
        .env_clear()
        .env("PATH", path)
        .current_dir(place.0.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("Preview") && !out.contains("PRIVATE") && !error.contains("BEGIN PRIVATE"), "{out}");
}
