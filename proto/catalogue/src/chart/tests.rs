use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

use super::*;
use crate::{
    limits::{DEPENDENCIES, METADATA_BYTES, PATH_BYTES, PAX_BYTES, PAX_RECORDS},
    testing::{append, archive, chart, gzip, metadata},
};

fn read(files: &[(&str, &[u8])]) -> Result<Chart, ChartError> {
    Chart::read(&chart(&metadata("web", "1.0.0"), files))
}

/// With this entry behind a good `Chart.yaml`.
fn with_entry(path: &str, kind: EntryType, content: &[u8]) -> ChartError {
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, "web/Chart.yaml", EntryType::Regular, metadata("web", "1.0.0").as_bytes());
    append(&mut builder, path, kind, content);
    Chart::read(&gzip(&builder.into_inner().unwrap())).unwrap_err()
}

fn with_metadata(text: &str) -> Result<Chart, ChartError> {
    Chart::read(&chart(text, &[]))
}

#[test]
fn chart_is_read() {
    let text = "apiVersion: v2\nname: web\nversion: v1.10.0\nappVersion: 1.10\nkubeVersion: \">= 1.28.0-0\"\n\
        type: application\ndescription: a web server\ndeprecated: true\n\
        dependencies:\n- {name: part, version: 1.x.x, repository: https://example.com}\n- {name: other, version: \"*\"}\n";
    let part = metadata("part", "1.0.0").replace("application", "library");
    let other = chart(&metadata("other", "2.0.0"), &[("web/crds/a.json", b"{}")]);
    let files: [(&str, &[u8]); 9] = [
        ("web/values.yaml", b"a: 1"),
        ("web/values.schema.json", br##"{"properties": {"a": {"$ref": "#/$defs/a"}}}"##),
        ("web/crds/a.yaml", b""),
        ("web/crds/more/b.yml", b""),
        ("web/crds/README.md", b""),
        ("web/charts/part/Chart.yaml", part.as_bytes()),
        ("web/charts/other-2.0.0.tgz", &other),
        ("web/charts/README.md", b"not a chart"),
        ("web/charts/_old/notes", b"not a chart"),
    ];
    let read = Chart::read(&chart(text, &files)).unwrap();
    assert_eq!((read.name.as_str(), read.version.to_string().as_str()), ("web", "v1.10.0"));
    assert_eq!((read.app_version.as_deref(), read.description.as_deref()), (Some("1.10"), Some("a web server")));
    assert_eq!((read.kube_version.unwrap().to_string().as_str(), read.deprecated), (">= 1.28.0-0", true));
    assert_eq!((read.dependencies, read.crd_files), (vec!["part".to_owned(), "other".to_owned()], 3));
    assert_eq!(read.values_schema.unwrap()["properties"]["a"]["$ref"], "#/$defs/a");
    assert!(with_metadata("apiVersion: v1\nname: web\nversion: 1.0.0\nkubeVersion: ''\n").is_ok(), "type is optional");
}

#[test]
fn annotations_lock_settings_and_ask_for_the_agents() {
    let of = |annotations: &str| {
        with_metadata(&format!(
            "apiVersion: v2\nname: web\nversion: 1.0.0\nannotations:\n  example.org/n: 1\n{annotations}"
        ))
    };
    let read = of("  towline.io/locked-settings: 'image, rbac.create,'\n  towline.io/agent-values: 'true'\n").unwrap();
    assert_eq!((read.locked_settings, read.agent_values), (vec!["image".to_owned(), "rbac.create".to_owned()], true));
    let read = of("").unwrap();
    assert_eq!((read.locked_settings, read.agent_values), (Vec::new(), false));
    // What helm takes for no text is no reason to lock nothing.
    assert!(of("  towline.io/locked-settings: [image]\n").is_err());
    assert!(of("  towline.io/agent-values: true\n").is_err());
}

#[test]
fn metadata_of_two_readings_or_not_whole_is_refused() {
    let large = format!("{}#{}", metadata("web", "1.0.0"), "x".repeat(METADATA_BYTES as usize));
    let many = format!("{}dependencies:\n{}", metadata("web", "1.0.0"), "- {name: a}\n".repeat(DEPENDENCIES + 1));
    let bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned()
        + &(b'b'..=b'p').fold(String::new(), |text, c| {
            let (this, before) = (c as char, (c - 1) as char);
            format!("{text}{this}: &{this} [{}]\n", vec![format!("*{before}"); 9].join(", "))
        });
    for (text, reason) in [
        ("", "Chart.yaml: "),
        ("[]", "Chart.yaml: "),
        ("name: web\nversion: 1.0.0\n", "there is no apiVersion"),
        ("apiVersion: v3\nname: web\nversion: 1.0.0\n", "v1 and v2 are known"),
        ("apiVersion: v2\nversion: 1.0.0\n", "there is no name"),
        ("apiVersion: v2\nname: web\n", "there is no version"),
        ("apiVersion: v2\nname: ../web\nversion: 1.0.0\n", "is not a name of a chart"),
        ("apiVersion: v2\nname: web\nversion: 1.0\n", "version: \"1.0\" is not a version"),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\nkubeVersion: new\n", "kubeVersion: \"new\" is not"),
        ("apiVersion: v2\nname: web\nname: other\nversion: 1.0.0\n", "duplicate"),
        ("apiVersion: v2\nname: web\nName: other\nversion: 1.0.0\n", "the key \"name\" is there twice"),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\nverſion: 2.0.0\n", "is not plain ASCII"),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\nKubeVersion: new\n", "is not plain ASCII"),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\n<<: {type: library}\n", "\"<<\" is not plain"),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\n!x type: library\n", "a key is not a text"),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\nhome: !x y\n", "a value has a tag"),
        (
            "apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: a, Name: b}]\n",
            "the key \"name\" is there twice",
        ),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: a, name: b}]\n", "duplicate"),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\nmaintainers: [{name: a, ä: b}]\n", "is not plain ASCII"),
        ("apiVersion: v2\nname: web\nversion: 1.0.0\n---\nname: other\n", "more than one document"),
        (&large, "it has more than"),
        (&many, "there are more than 256 dependencies"),
        (&bomb, "Chart.yaml: "),
    ] {
        let error = with_metadata(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let annotations = format!("{}annotations: {{a: x, A: y, ä: z}}\n", metadata("web", "1.0.0"));
    assert!(with_metadata(&annotations).is_ok(), "their keys are the author's");
    let library = with_metadata(&metadata("web", "1.0.0").replace("application", "library")).unwrap_err();
    assert_eq!(library.to_string(), "Chart.yaml: the type is \"library\"; only an application can be installed");
    let none = Chart::read(&gzip(&archive(&[("web/values.yaml", b"")]))).unwrap_err();
    assert_eq!(none.to_string(), "there is no Chart.yaml; is it a chart?");
    assert_eq!(Chart::read(&gzip(&archive(&[]))).unwrap_err(), none);
}

#[test]
fn dependency_that_is_not_in_the_archive_is_refused() {
    let text = format!("{}dependencies:\n- name: part\n", metadata("web", "1.0.0"));
    let missing = with_metadata(&text).unwrap_err().to_string();
    assert!(missing.starts_with("the chart web depends on part, which is not in its folder charts"), "{missing}");
    let old = b"dependencies:\n- name: part\n";
    let missing = read(&[("web/requirements.yaml", old)]).unwrap_err();
    assert!(matches!(missing, ChartError::Dependency { .. }));
    let part = metadata("part", "1.0.0");
    assert!(read(&[("web/requirements.yaml", old), ("web/charts/part/Chart.yaml", part.as_bytes())]).is_ok());
    let broken = read(&[("web/charts/part/values.yaml", b"")]).unwrap_err();
    assert_eq!(broken, ChartError::NoMetadata("charts/part/Chart.yaml".to_owned()));
    assert!(matches!(read(&[("web/charts/part.tgz", b"x")]).unwrap_err(), ChartError::Damaged(_)));
}

#[test]
fn charts_in_each_other_are_bounded() {
    let mut inner = chart(&metadata("web", "1.0.0"), &[]);
    let mut depth = 1;
    while depth < CHART_DEPTH {
        inner = chart(&metadata("web", "1.0.0"), &[("web/charts/web.tgz", &inner)]);
        depth += 1;
    }
    assert!(Chart::read(&inner).is_ok());
    let deeper = chart(&metadata("web", "1.0.0"), &[("web/charts/web.tgz", &inner)]);
    assert_eq!(Chart::read(&deeper).unwrap_err(), ChartError::Depth);
    let path = format!("web/{}Chart.yaml", "charts/a/".repeat(20));
    let text = metadata("a", "1.0.0");
    assert!(read(&[(&path, text.as_bytes())]).is_err());
}

#[test]
fn schema_that_refers_to_another_document_is_refused() {
    for schema in [
        &br#"{"$ref": "https://example.com/schema.json"}"#[..],
        br#"{"properties": {"a": [{"$ref": "file:///dev/zero"}]}}"#,
        br#"{"$dynamicRef": "other.json#a"}"#,
        br#"{"$recursiveRef": "other.json"}"#,
        br#"{"$schema": "file:///dev/zero"}"#,
        br#"{"$schema": "https://json-schema.org.example.com/draft-07/schema#"}"#,
        br#"{"$schema": "http://json-schema.org/schema#"}"#,
        br#"{"properties": {"a": {"$schema": "https://example.com/schema"}}}"#,
        br##"{"properties": {"a": {"$id": "https://example.com/", "$ref": "#/a"}}}"##,
        br#"{"properties": {"a": {"$id": "other.json"}}}"#,
        br#"{"properties": {"a": {"id": "file:///dev/zero"}}}"#,
        br##"{"$id": "https://example.com/schema#a"}"##,
    ] {
        let error = read(&[("web/values.schema.json", schema)]).unwrap_err().to_string();
        assert!(error.starts_with("values.schema.json: it refers to another document"), "{error}");
    }
    let deep = "[".repeat(100_000);
    for schema in ["", "[]", "{", &format!("{{\"a\": {deep}")] {
        let error = read(&[("web/values.schema.json", schema.as_bytes())]).unwrap_err();
        assert!(matches!(error, ChartError::Metadata { .. }), "{error}");
    }
    for schema in ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"] {
        let schema = format!(
            "{{\"$schema\": {schema:?}, \"$id\": \"https://example.com/web.json\", \"properties\": \
             {{\"id\": {{\"$id\": \"#a\", \"default\": [{{\"id\": \"x\"}}]}}}}}}"
        );
        assert!(read(&[("web/values.schema.json", schema.as_bytes())]).is_ok(), "{schema}");
    }
    // A property of that name is none.
    assert!(read(&[("web/values.schema.json", br#"{"properties": {"$ref": {"type": "string"}}}"#)]).is_ok());
}

#[test]
fn links_devices_and_pipes_are_refused() {
    for (kind, what) in [
        (EntryType::Symlink, "a symbolic link"),
        (EntryType::Link, "a hard link"),
        (EntryType::Char, "a device"),
        (EntryType::Block, "a device"),
        (EntryType::Fifo, "a named pipe"),
        (EntryType::GNUSparse, "of an unknown kind"),
        (EntryType::Continuous, "of an unknown kind"),
        (EntryType::new(b'Z'), "of an unknown kind"),
    ] {
        let error = with_entry("web/templates/x", kind, b"");
        let expected = ChartError::Kind { path: "web/templates/x".to_owned(), kind: what };
        assert!(error == expected || kind == EntryType::GNUSparse, "{kind:?}: {error}");
    }
}

#[test]
fn path_outside_the_folder_or_of_two_readings_is_refused() {
    for (path, reason) in [
        ("/etc/passwd", "is absolute"),
        ("//web/x", "is absolute"),
        ("../x", "leaves the chart's folder"),
        ("web/../x", "leaves the chart's folder"),
        ("web/a/../../x", "leaves the chart's folder"),
        ("web/..", "leaves the chart's folder"),
        ("web\\..\\x", "has a backslash or a control character in it"),
        ("web/a\nb", "has a backslash or a control character in it"),
        ("web/./x", "has an empty part or a dot in it"),
        ("web//x", "has an empty part or a dot in it"),
        ("web/x/", "has an empty part or a dot in it"),
        ("./web/x", "has an empty part or a dot in it"),
        ("web/c:/x", "begins with a drive"),
        ("Chart.yaml", "is not in the chart's folder"),
    ] {
        let error = with_entry(path, EntryType::Regular, b"");
        assert_eq!(error, ChartError::Path { path: path.to_owned(), reason }, "{error}");
    }
    assert!(matches!(with_entry("", EntryType::Regular, b""), ChartError::Path { .. }));
    let folders = with_entry("other/x", EntryType::Regular, b"");
    assert_eq!(folders, ChartError::Folders("web".to_owned(), "other".to_owned()));
    let long = format!("web/{}", "a/".repeat(PATH_BYTES));
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(0);
    builder.append_data(&mut header, &long[..long.len() - 1], &b""[..]).unwrap();
    let error = Chart::read(&gzip(&builder.into_inner().unwrap())).unwrap_err();
    assert!(matches!(error, ChartError::Path { reason: "is too long", .. }), "{error}");
}

#[test]
fn path_that_is_there_twice_is_refused() {
    let chart_yaml = with_entry("web/Chart.yaml", EntryType::Regular, metadata("web", "2.0.0").as_bytes());
    assert_eq!(chart_yaml, ChartError::Twice("web/Chart.yaml".to_owned()));
    let file_as_folder = with_entry("web/Chart.yaml/x", EntryType::Regular, b"");
    assert_eq!(file_as_folder, ChartError::Twice("Chart.yaml".to_owned()));
    let both = with_entry("web/Chart.yaml", EntryType::Directory, b"");
    assert_eq!(both, ChartError::Twice("Chart.yaml".to_owned()));
}

/// The tar reader of Go, and so helm, takes what lies in a folder for entries.
#[test]
fn folder_with_content_is_refused() {
    let mut hidden = archive(&[("web/templates/hidden.yaml", b"kind: Pod")]);
    hidden.truncate(1024);
    let error = with_entry("web/templates", EntryType::Directory, &hidden);
    assert_eq!(error, ChartError::Kind { path: "web/templates".to_owned(), kind: "a folder with content" });
    // Of two sizes one is nothing.
    let error = with_records(&record("size", "0"), EntryType::Directory, &hidden);
    assert!(is_of_two_ways(&error), "{error}");
    let error = with_records(&record("size", "1024"), EntryType::Directory, b"");
    assert!(is_of_two_ways(&error), "{error}");
}

type Change<'a> = &'a dyn Fn(&mut [u8]);

/// Go puts the front of a path before the name where other readers do not.
#[test]
fn header_whose_prefix_has_two_readings_is_refused() {
    let read = |change: Change<'_>| {
        let mut builder = Builder::new(Vec::new());
        append(&mut builder, "web/Chart.yaml", EntryType::Regular, metadata("web", "1.0.0").as_bytes());
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..5].copy_from_slice(b"web/x");
        header.set_entry_type(EntryType::Regular);
        header.set_size(0);
        change(header.as_mut_bytes());
        header.set_cksum();
        builder.append(&header, &b""[..]).unwrap();
        Chart::read(&gzip(&builder.into_inner().unwrap()))
    };
    let set =
        |at: usize, text: &'static [u8]| move |header: &mut [u8]| header[at..at + text.len()].copy_from_slice(text);
    assert!(read(&|_| {}).is_ok());
    assert!(read(&set(345, b"web/templates")).is_ok(), "a prefix of ustar");
    assert!(read(&set(257, b"ustar  \0")).is_ok(), "GNU");
    let two_ways: [Change<'_>; 5] = [
        &set(263, b"01"),
        &set(508, b"tar\0"),
        &set(257, b"ustar  \x01"),
        &set(257, &[0; 8]),
        // Times of GNU that are none.
        &|header| {
            set(257, b"ustar  \0")(header);
            set(345, b"web/templates")(header);
        },
    ];
    for (at, change) in two_ways.into_iter().enumerate() {
        let error = read(change).unwrap_err();
        assert!(is_of_two_ways(&error), "{at}: {error}");
    }
}

#[test]
fn pax_records_are_bounded_in_number_and_bytes() {
    let records = |count: usize| (0..count).fold(String::new(), |text, at| text + &record(&format!("x.{at}"), ""));
    for records in [records(PAX_RECORDS + 1), record("comment", &"x".repeat(PAX_BYTES))] {
        let error = with_records(&records, EntryType::Regular, b"");
        let too_many = matches!(error, ChartError::Path { reason: "has too many or too long headers", .. });
        assert!(too_many, "{error}");
    }
    // The last one alone is wrong.
    let last = records(PAX_RECORDS - 1) + &record("x.0", "");
    assert!(is_of_two_ways(&with_records(&last, EntryType::Regular, b"")));
}

/// A record of a PAX header.
fn record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let length = (rest.len() + 1..).find(|length| length.to_string().len() + rest.len() == *length).unwrap();
    format!("{length}{rest}")
}

/// With an entry behind a good `Chart.yaml` that has these PAX records.
fn with_records(records: &str, kind: EntryType, content: &[u8]) -> ChartError {
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, "web/Chart.yaml", EntryType::Regular, metadata("web", "1.0.0").as_bytes());
    append(&mut builder, "pax", EntryType::XHeader, records.as_bytes());
    append(&mut builder, "web/c", kind, content);
    Chart::read(&gzip(&builder.into_inner().unwrap())).unwrap_err()
}

fn is_of_two_ways(error: &ChartError) -> bool {
    matches!(error, ChartError::Path { reason, .. } if reason.contains("two ways"))
}

/// A tar entry whose header and PAX header differ, which readers take for different files.
#[test]
fn headers_with_two_readings_are_refused() {
    for records in [
        record("path", "web/a") + &record("path", "web/b"),
        record("GNU.sparse.major", "1"),
        record("size", "0") + &record("size", "0"),
        record("size", "1"),
        // To Go it is 0.
        record("size", "-0"),
    ] {
        let error = with_records(&records, EntryType::Regular, b"");
        assert!(is_of_two_ways(&error), "{error}");
    }
    // A comment on the whole archive, as `git archive` makes it, and a long path of one reading.
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, "pax_global_header", EntryType::XGlobalHeader, record("comment", "x").as_bytes());
    append(&mut builder, "web/", EntryType::Directory, b"");
    append(&mut builder, "web/Chart.yaml", EntryType::Regular, metadata("web", "1.0.0").as_bytes());
    append(&mut builder, "pax", EntryType::XHeader, record("path", &format!("web/{}", "a".repeat(200))).as_bytes());
    append(&mut builder, "web/a", EntryType::Regular, b"");
    assert!(Chart::read(&gzip(&builder.into_inner().unwrap())).is_ok());
}

#[test]
fn bytes_behind_the_archive_are_refused() {
    let good = chart(&metadata("web", "1.0.0"), &[]);
    // helm reads a second gzip member as a part of the first one.
    let second = [good.clone(), gzip(b"x")].concat();
    assert_eq!(Chart::read(&second).unwrap_err(), ChartError::Trailing);
    assert_eq!(Chart::read(&[good.as_slice(), b"x"].concat()).unwrap_err(), ChartError::Trailing);
    let behind = [archive(&[("web/Chart.yaml", metadata("web", "1.0.0").as_bytes())]), b"x".to_vec()].concat();
    assert_eq!(Chart::read(&gzip(&behind)).unwrap_err(), ChartError::Trailing);
}

#[test]
fn archive_that_is_cut_off_or_changed_is_refused() {
    let good = chart(&metadata("web", "1.0.0"), &[("web/values.yaml", b"a: 1")]);
    for length in 0..good.len() {
        assert!(Chart::read(&good[..length]).is_err(), "{length} bytes");
    }
    assert!(matches!(Chart::read(b"PK"), Err(ChartError::Damaged(_))));
    assert!(matches!(Chart::read(&vec![0; ARCHIVE_BYTES as usize + 1]), Err(ChartError::TooLarge(_))));
}

#[test]
fn file_or_number_of_files_over_its_bound_is_refused() {
    let large = vec![0; FILE_BYTES as usize + 1];
    let error = with_entry("web/large", EntryType::Regular, &large);
    assert_eq!(error, ChartError::File("web/large".to_owned()));
    assert!(read(&[("web/large", &large[1..])]).is_ok());
    let names: Vec<_> = (0..ENTRIES).map(|at| format!("web/{at}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    assert_eq!(read(&files).unwrap_err(), ChartError::Entries);
    assert!(read(&files[1..]).is_ok());
}

/// A writer of gigabytes that keeps what they compress to.
fn bomb(gigabytes: u64, head: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(head).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..gigabytes << 10 {
        encoder.write_all(&zeros).unwrap();
    }
    encoder.finish().unwrap()
}

#[test]
fn archive_of_gigabytes_is_refused_in_bounded_time() {
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, "web/Chart.yaml", EntryType::Regular, metadata("web", "1.0.0").as_bytes());
    let head = builder.into_inner().unwrap();
    // Behind the end of the archive; as many files; as the name of a file; in an archive in the archive.
    let behind = bomb(1, &head);
    let mut many = Builder::new(Vec::new());
    let large = vec![0; FILE_BYTES as usize];
    for at in 0..20 {
        append(&mut many, &format!("web/{at}"), EntryType::Regular, &large);
    }
    let many = gzip(&many.into_inner().unwrap());
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 30);
    header.set_cksum();
    let name = bomb(1, header.as_bytes());
    let nested = chart(&metadata("web", "1.0.0"), &[("web/charts/part.tgz", &many), ("web/charts/p.tgz", &behind)]);
    for (what, archive) in [("behind", behind), ("many", many), ("name", name), ("nested", nested)] {
        assert!(archive.len() < 8 << 20, "{what}: {}", archive.len());
        let begun = Instant::now();
        assert_eq!(Chart::read(&archive).unwrap_err(), ChartError::Unpacked, "{what}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}: {:?}", begun.elapsed());
    }
    // A header alone says that the file is too large: none of it is unpacked.
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..5].copy_from_slice(b"web/x");
    header.set_entry_type(EntryType::Regular);
    header.set_size(10 << 30);
    header.set_cksum();
    assert_eq!(Chart::read(&gzip(header.as_bytes())).unwrap_err(), ChartError::File("web/x".to_owned()));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(Chart::read(&bytes).is_err());
        let _ = Chart::read(&gzip(&bytes));
        let _ = with_metadata(&String::from_utf8_lossy(&bytes));
        let _ = read(&[("web/values.schema.json", &bytes), ("web/charts/a.tgz", &bytes)]);
    }

    /// Changed anywhere, an archive is refused or the same chart: gzip has a checksum.
    #[test]
    fn changed_archive_is_refused_or_the_same(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let good = chart(&metadata("web", "1.0.0"), &[("web/values.yaml", b"a: 1")]);
        let mut changed = good.clone();
        changed[at.index(good.len())] ^= 1 << bit;
        if let Ok(read) = Chart::read(&changed) {
            prop_assert_eq!(read, Chart::read(&good).unwrap());
        }
    }

    /// Whatever entries there are, what is read lies below one folder.
    #[test]
    fn paths_that_are_taken_are_plain(path in "(web/)?[a./\\\\:-]{0,12}") {
        let mut builder = Builder::new(Vec::new());
        append(&mut builder, "web/Chart.yaml", EntryType::Regular, metadata("web", "1.0.0").as_bytes());
        append(&mut builder, &path, EntryType::Regular, b"");
        if Chart::read(&gzip(&builder.into_inner().unwrap())).is_ok() {
            prop_assert!(path.starts_with("web/") && !path.contains("//") && !path.contains('\\'));
            prop_assert!(path.split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
        }
    }
}
