//! What a resource's JSON may hold, as a table. One table checks what is written, decides what is kept and what is
//! shown to which api-version, and is what the OpenAPI document is made of.

mod part;
mod told;

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use types::api::ErrorDetail;

pub use self::{
    part::{differs, fill_in, keep_created, merge, take_fixed},
    told::{Bounds, told},
};

/// Characters of a text at most, unless its property says otherwise.
const TEXT: usize = 2048;
/// Entries of a list or a map at most.
const ENTRIES: usize = 1000;
/// Characters of a setting's name at most.
const SETTING_NAME: usize = 512;

/// Tags at most, characters of a tag's name, and of its value: ARM's limits.
const TAGS: usize = 50;
const TAG_NAME: usize = 512;
const TAG_VALUE: usize = 256;
/// Faults that one answer tells at most.
const FAULTS: usize = 50;

/// What a value may be.
#[derive(Clone, Copy)]
pub enum Type {
    /// Any text.
    Text,
    /// One of these words, in any case; kept in the case given here.
    Words(&'static [&'static str]),
    /// `true` or `false`.
    Bool,
    /// A whole number from 0 to 2^31 - 1.
    Count,
    /// A whole number within bounds, both included.
    Number(i32, i32),
    /// An instant, RFC 3339. Only ever read.
    Instant,
    /// Names and texts.
    Texts,
    /// Settings: names and texts, which may be long; `null` stands for one that is to go.
    Settings,
    /// Tags: as [`Type::Texts`], within ARM's limits (docs/features.md R12).
    Tags,
    /// A list whose members are of this type.
    List(&'static Self),
    /// An object that is another kind's to check.
    Json,
    /// An object of known properties.
    Object(&'static [Property]),
    /// Objects by their names.
    Map(&'static Entries),
    /// A text that a function checks; it tells what is wrong.
    Checked(fn(&str) -> Result<(), String>),
    /// The same, with the pattern that says it to clients (ECMA 262).
    Shaped(fn(&str) -> Result<(), String>, &'static str),
}

/// What objects are known by their names in a map.
pub struct Entries {
    /// What a name must be, if this one is not.
    pub name: fn(&str) -> Result<(), String>,
    /// Entries at most.
    pub most: usize,
    /// Properties of each.
    pub of: &'static [Property],
}

/// What a property is where nobody said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// A fixed text.
    Text(&'static str),
    /// `true` or `false`.
    Bool(bool),
    /// A fixed number.
    Number(i32),
}

impl From<Fallback> for Value {
    fn from(fallback: Fallback) -> Self {
        match fallback {
            Fallback::Text(text) => text.into(),
            Fallback::Bool(bool) => bool.into(),
            Fallback::Number(number) => number.into(),
        }
    }
}

/// Who writes a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Clients write it, and read what they wrote.
    ReadWrite,
    /// Clients, who never see it again.
    WriteOnly,
    /// This service: what a client sends is ignored, as ARM does.
    ReadOnly,
}

/// One property of an object.
#[derive(Clone, Copy)]
pub struct Property {
    /// Its name, compared as it is.
    pub name: &'static str,
    /// What it may be.
    pub kind: Type,
    /// Whether clients or this service write it.
    pub access: Access,
    /// Whether an object without it is refused.
    pub required: bool,
    /// What it is where nobody said.
    pub default: Option<Fallback>,
    /// The first api-version that shows it.
    pub since: Option<&'static str>,
    /// The api-versions that show it, where these are not all since one.
    pub only_in: Option<&'static [&'static str]>,
    /// Whether it is shown as `null` while it has no value, rather than not at all.
    pub shown_empty: bool,
    /// Whether it says which one of a list an object is, in any case.
    pub identity: bool,
    /// Whether a PATCH changes what it names of its value, rather than all of it; `null` in it takes something away.
    pub merged: bool,
    /// Whether it stays as it was created.
    pub create_only: bool,
}

impl Property {
    /// One that clients write and need not.
    pub const fn new(name: &'static str, kind: Type) -> Self {
        Self {
            name,
            kind,
            access: Access::ReadWrite,
            required: false,
            default: None,
            since: None,
            only_in: None,
            shown_empty: false,
            identity: false,
            merged: false,
            create_only: false,
        }
    }

    /// One that only this service writes, `null` until it does.
    pub const fn read_only(name: &'static str, kind: Type) -> Self {
        Self { access: Access::ReadOnly, shown_empty: true, ..Self::new(name, kind) }
    }

    /// Without it the object is refused.
    pub const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// Clients never see it again.
    pub const fn write_only(self) -> Self {
        Self { access: Access::WriteOnly, ..self }
    }

    /// What it is where nobody said.
    pub const fn or(self, default: &'static str) -> Self {
        Self { default: Some(Fallback::Text(default)), ..self }
    }

    /// The same of one that is `true` or `false`.
    pub const fn or_bool(self, default: bool) -> Self {
        Self { default: Some(Fallback::Bool(default)), ..self }
    }

    /// The same of a number.
    pub const fn or_number(self, default: i32) -> Self {
        Self { default: Some(Fallback::Number(default)), ..self }
    }

    /// Shown from an api-version on.
    pub const fn since(self, version: &'static str) -> Self {
        Self { since: Some(version), ..self }
    }

    /// Shown by these api-versions alone.
    pub const fn only_in(self, versions: &'static [&'static str]) -> Self {
        Self { only_in: Some(versions), ..self }
    }

    /// A PATCH changes what it names of its value.
    pub const fn merged(self) -> Self {
        Self { merged: true, ..self }
    }

    /// It stays as it was created ([`keep_created`]).
    pub const fn create_only(self) -> Self {
        Self { create_only: true, ..self }
    }

    /// It says which one of a list an object is.
    pub const fn identity(self) -> Self {
        Self { identity: true, ..self }
    }

    /// Whether an api-version shows it. Dated versions compare as texts; a preview is older than the version of the
    /// same day.
    fn is_known_to(&self, version: &str) -> bool {
        self.since.is_none_or(|since| version >= since)
            && self.only_in.is_none_or(|versions| versions.contains(&version))
    }
}

/// Checks what a client wrote, all faults at once: takes out what only this service writes, fills in defaults; [`fill_in`]
/// those of properties that are not for every api-version, or stay as they were created.
pub fn check(object: &'static [Property], raw: &Map<String, Value>) -> Result<Map<String, Value>, ErrorDetail> {
    let mut faults = Vec::new();
    let checked = check_object(object, raw, Extent::Whole, "", &mut faults);
    ErrorDetail::all(faults).map_or(Ok(checked), Err)
}

/// The same for a part of an object (PATCH): nothing is required, nothing is filled in. What is merged is a part itself,
/// in which `null` stays: it takes something away.
pub fn check_part(object: &'static [Property], raw: &Map<String, Value>) -> Result<Map<String, Value>, ErrorDetail> {
    let mut faults = Vec::new();
    known(object, raw, "", &mut faults);
    let mut checked = Map::new();
    for (property, value) in written(object, raw) {
        if let Some(value) = check_value(&property.kind, value, Extent::of(property), property.name, &mut faults) {
            checked.insert(property.name.to_owned(), value);
        }
    }
    ErrorDetail::all(faults).map_or(Ok(checked), Err)
}

/// How much of an object a client names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All of it: what is not there has its default.
    Whole,
    /// What is to be changed of it, and `null` for what is to go.
    Part,
}

impl Extent {
    /// Of the value of a property in a PATCH.
    fn of(property: &Property) -> Self {
        if property.merged { Self::Part } else { Self::Whole }
    }
}

/// Keeps a fault, unless there are enough: an answer must not be many times as long as what it refuses.
fn refuse(faults: &mut Vec<ErrorDetail>, fault: impl FnOnce() -> ErrorDetail) {
    if faults.len() < FAULTS {
        faults.push(fault());
    }
}

fn known(object: &'static [Property], raw: &Map<String, Value>, at: &str, faults: &mut Vec<ErrorDetail>) {
    for name in raw.keys().filter(|name| !object.iter().any(|property| property.name == *name)) {
        refuse(faults, || {
            let names: Vec<_> = object.iter().filter(|p| p.access != Access::ReadOnly).map(|p| p.name).collect();
            let message = format!("The property '{}' is not known; known here: {}.", shortened(name), names.join(", "));
            ErrorDetail::new("UnknownProperty", message).at(join(at, &shortened(name)))
        });
    }
}

/// What a client may write and did. `null` is as if it were not there.
fn written<'a>(
    object: &'static [Property],
    raw: &'a Map<String, Value>,
) -> impl Iterator<Item = (&'static Property, &'a Value)> {
    let writable = object.iter().filter(|property| property.access != Access::ReadOnly);
    writable.filter_map(|property| Some((property, raw.get(property.name).filter(|value| !value.is_null())?)))
}

fn check_object(
    object: &'static [Property],
    raw: &Map<String, Value>,
    extent: Extent,
    at: &str,
    faults: &mut Vec<ErrorDetail>,
) -> Map<String, Value> {
    known(object, raw, at, faults);
    let mut checked = Map::new();
    for (property, value) in written(object, raw) {
        let inner = if extent == Extent::Part { Extent::of(property) } else { extent };
        if let Some(value) = check_value(&property.kind, value, inner, &join(at, property.name), faults) {
            checked.insert(property.name.to_owned(), value);
        }
    }
    for property in object {
        let sent = raw.get(property.name);
        if sent.is_some_and(|value| !value.is_null()) {
            continue;
        }
        match extent {
            Extent::Part if sent.is_some() && property.access != Access::ReadOnly => {
                checked.insert(property.name.to_owned(), Value::Null);
            }
            Extent::Part => {}
            Extent::Whole if property.required => refuse(faults, || missing(&join(at, property.name))),
            // What stays as it was created, or is kept because this client does not see it, is filled in once that is
            // known.
            Extent::Whole if property.create_only || property.since.is_some() => {}
            Extent::Whole => {
                if let Some(default) = property.default {
                    checked.insert(property.name.to_owned(), default.into());
                }
            }
        }
    }
    checked
}

fn missing(at: &str) -> ErrorDetail {
    ErrorDetail::new("MissingRequiredProperty", format!("The property '{at}' is required.")).at(at)
}

fn check_value(kind: &Type, value: &Value, extent: Extent, at: &str, faults: &mut Vec<ErrorDetail>) -> Option<Value> {
    let mut refuse = |wanted: String| {
        let message = || format!("The property '{at}' must be {wanted}.");
        refuse(faults, || ErrorDetail::new("InvalidRequestContent", message()).at(at));
        None
    };
    match (kind, value) {
        (Type::Text, Value::String(text)) if text.len() <= TEXT => Some(value.clone()),
        (Type::Checked(check) | Type::Shaped(check, _), Value::String(text)) => match check(text) {
            Ok(()) => Some(value.clone()),
            Err(wanted) => refuse(wanted),
        },
        (Type::Words(words), Value::String(text)) => match words.iter().find(|word| word.eq_ignore_ascii_case(text)) {
            Some(word) => Some((*word).into()),
            None => refuse(format!("one of {}", words.join(", "))),
        },
        (Type::Bool, Value::Bool(_)) => Some(value.clone()),
        (Type::Count, Value::Number(number)) if within(number, 0, i32::MAX) => Some(value.clone()),
        (Type::Number(least, most), Value::Number(number)) if within(number, *least, *most) => Some(value.clone()),
        (Type::Texts, Value::Object(map)) if is_texts(map) => {
            let is_said = |value: &Value| extent == Extent::Part || !value.is_null();
            let texts = map.iter().filter(|(_, value)| is_said(value));
            Some(Value::Object(texts.map(|(name, value)| (name.clone(), value.clone())).collect()))
        }
        (Type::Settings, Value::Object(map)) if is_settings(map) => Some(value.clone()),
        (Type::Tags, Value::Object(map)) if is_tags(map) => Some(value.clone()),
        (Type::Json, Value::Object(_)) => Some(value.clone()),
        (Type::List(kind), Value::Array(list)) if list.len() <= ENTRIES => {
            let places = list.iter().enumerate();
            let checked =
                places.map(|(i, value)| check_value(kind, value, Extent::Whole, &format!("{at}[{i}]"), faults));
            checked.collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>().map(Value::Array)
        }
        (Type::Object(object), Value::Object(raw)) => {
            Some(Value::Object(check_object(object, raw, extent, at, faults)))
        }
        (Type::Map(entries), Value::Object(raw)) if raw.len() <= entries.most => {
            Some(Value::Object(check_entries(entries, raw, extent, at, faults)))
        }
        _ => refuse(wanted(kind)),
    }
}

fn within(number: &serde_json::Number, least: i32, most: i32) -> bool {
    number.as_i64().is_some_and(|number| (i64::from(least)..=i64::from(most)).contains(&number))
}

/// `null` is as if the entry were not there, or takes it away in a part.
fn check_entries(
    entries: &Entries,
    raw: &Map<String, Value>,
    extent: Extent,
    at: &str,
    faults: &mut Vec<ErrorDetail>,
) -> Map<String, Value> {
    let mut checked = Map::new();
    for (name, value) in raw {
        let at = join(at, &shortened(name));
        match ((entries.name)(name), value) {
            (Err(wanted), _) => refuse(faults, || {
                ErrorDetail::new("InvalidRequestContent", format!("The name in '{at}' must be {wanted}.")).at(&at)
            }),
            (Ok(()), Value::Object(raw)) => {
                checked.insert(name.clone(), check_object(entries.of, raw, extent, &at, faults).into());
            }
            (Ok(()), Value::Null) if extent == Extent::Part => drop(checked.insert(name.clone(), Value::Null)),
            (Ok(()), Value::Null) => {}
            (Ok(()), _) => refuse(faults, || {
                ErrorDetail::new("InvalidRequestContent", format!("The property '{at}' must be an object.")).at(&at)
            }),
        }
    }
    checked
}

/// `null` is as if the entry were not there, or takes it away in a part.
fn is_texts(map: &Map<String, Value>) -> bool {
    map.len() <= ENTRIES
        && map.iter().all(|(key, value)| {
            key.len() <= TEXT && (value.is_null() || value.as_str().is_some_and(|text| text.len() <= TEXT))
        })
}

/// The body that they are in is bounded as a whole.
fn is_settings(map: &Map<String, Value>) -> bool {
    let name = |name: &str| (1..=SETTING_NAME).contains(&name.len());
    map.len() <= ENTRIES && map.iter().all(|(key, value)| name(key) && (value.is_string() || value.is_null()))
}

fn is_tags(map: &Map<String, Value>) -> bool {
    let fits = |key: &str, value: &Value| {
        let text = value.as_str().is_some_and(|text| text.chars().count() <= TAG_VALUE);
        text && (1..=TAG_NAME).contains(&key.chars().count())
    };
    // Case tells no names of tags apart.
    let names: std::collections::HashSet<String> = map.keys().map(|name| name.to_lowercase()).collect();
    map.len() <= TAGS && names.len() == map.len() && map.iter().all(|(key, value)| fits(key, value))
}

fn wanted(kind: &Type) -> String {
    match kind {
        Type::Text | Type::Checked(_) | Type::Shaped(..) => format!("a text of at most {TEXT} characters"),
        Type::Words(words) => format!("one of {}", words.join(", ")),
        Type::Bool => "true or false".to_owned(),
        Type::Count => "a whole number from 0 to 2147483647".to_owned(),
        Type::Number(least, most) => format!("a whole number from {least} to {most}"),
        Type::Instant => "an instant such as 2030-01-31T12:00:00Z".to_owned(),
        Type::Texts => format!("an object of at most {ENTRIES} names and texts"),
        Type::Settings => {
            format!(
                "an object of at most {ENTRIES} names of 1 to {SETTING_NAME} characters and texts (a number is \"5\", yes is \"true\")"
            )
        }
        Type::Tags => format!(
            "an object of at most {TAGS} tags: names of 1 to {TAG_NAME} characters that differ in more than case, and texts \
             of at most {TAG_VALUE}"
        ),
        Type::List(_) => format!("a list of at most {ENTRIES} entries"),
        Type::Object(_) | Type::Json => "an object".to_owned(),
        Type::Map(entries) => format!("an object of at most {} names and objects", entries.most),
    }
}

/// What of a kept object is shown to an api-version: read-only properties also while they have no value, protected ones
/// never. It is taken apart for that and not copied: a page has a thousand of them (C9).
pub fn show(object: &'static [Property], mut kept: Map<String, Value>, version: &str) -> Map<String, Value> {
    show_in(object, &mut kept, version);
    kept
}

fn show_in(object: &'static [Property], kept: &mut Map<String, Value>, version: &str) {
    let visible = |property: &&Property| property.access != Access::WriteOnly && property.is_known_to(version);
    kept.retain(|name, value| match object.iter().find(|property| property.name == name).filter(visible) {
        Some(property) => {
            show_value(&property.kind, value, version);
            true
        }
        None => false,
    });
    for property in object.iter().filter(visible).filter(|property| property.shown_empty) {
        if !kept.contains_key(property.name) {
            kept.insert(property.name.to_owned(), Value::Null);
        }
    }
}

/// Puts into `new`, a checked replacement by a client of `version`, what of `old` that version does not show: who
/// cannot see a property does not mean to take it away. What such a client names all the same is taken as it says.
pub fn keep_unseen(object: &'static [Property], old: &Map<String, Value>, new: &mut Map<String, Value>, version: &str) {
    for property in object {
        let Some(kept) = old.get(property.name) else { continue };
        if !property.is_known_to(version) {
            new.entry(property.name).or_insert_with(|| kept.clone());
        } else if let (Type::Map(entries), Value::Object(kept)) = (&property.kind, kept) {
            for (name, new) in new.get_mut(property.name).and_then(Value::as_object_mut).into_iter().flatten() {
                if let (Some(Value::Object(kept)), Value::Object(new)) = (kept.get(name), new) {
                    keep_unseen(entries.of, kept, new, version);
                }
            }
        } else if let (Type::Object(inner), Value::Object(kept)) = (&property.kind, kept) {
            let mut inside = new.get(property.name).and_then(Value::as_object).cloned().unwrap_or_default();
            let before = inside.len();
            keep_unseen(inner, kept, &mut inside, version);
            if inside.len() > before {
                new.insert(property.name.to_owned(), inside.into());
            }
        }
    }
}

fn show_value(kind: &Type, value: &mut Value, version: &str) {
    match (kind, value) {
        (Type::Object(object), Value::Object(kept)) => show_in(object, kept, version),
        (Type::Map(entries), Value::Object(kept)) => {
            for value in kept.values_mut() {
                show_value(&Type::Object(entries.of), value, version);
            }
        }
        (Type::List(kind), Value::Array(list)) => list.iter_mut().for_each(|value| show_value(kind, value, version)),
        _ => {}
    }
}

/// What is write-only of an object, which is kept encrypted.
#[derive(Debug, Default)]
pub struct Protected {
    /// What was in it, by place.
    pub sent: Map<String, Value>,
    /// Where there is, or could be, such a value.
    places: Vec<String>,
}

impl Protected {
    /// With what was kept of the same places, where nothing else was sent: nobody can send back what is never shown.
    /// What has no place any more is gone.
    #[must_use]
    pub fn with_kept(self, mut kept: Map<String, Value>) -> Map<String, Value> {
        let Self { mut sent, places } = self;
        for place in places {
            if let Some(value) = kept.remove(&place) {
                sent.entry(place).or_insert(value);
            }
        }
        // `null` in a part took it away.
        sent.retain(|_, value| !value.is_null());
        sent
    }

    /// Whether something else was sent for each place at which something is kept.
    pub fn replaces(&self, kept: &Map<String, Value>) -> bool {
        self.places.iter().all(|place| self.sent.contains_key(place) || !kept.contains_key(place))
    }
}

/// Takes what is write-only out of a checked object. Its place names the objects of a list by their identity: their
/// order may change.
pub fn split_protected(object: &'static [Property], kept: &mut Map<String, Value>) -> Protected {
    split_protected_at(object, kept, "")
}

/// The same of an object that lies at a place of the resource.
pub fn split_protected_at(object: &'static [Property], kept: &mut Map<String, Value>, at: &str) -> Protected {
    let mut protected = Protected::default();
    split(object, kept, at, &mut protected);
    protected
}

/// Puts what was taken out of an object back where it was, unless there is something else by now. `kept`: by places, of
/// which those within lists are left out.
pub fn restore_protected(object: &mut Map<String, Value>, kept: &Map<String, Value>) {
    for (place, value) in kept.iter().filter(|(place, _)| !place.contains('[')) {
        let mut at = &mut *object;
        let mut names = place.split('.').peekable();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                at.entry(name).or_insert_with(|| value.clone());
                break;
            }
            match at.get_mut(name).and_then(Value::as_object_mut) {
                Some(inner) => at = inner,
                None => break,
            }
        }
    }
}

fn split(object: &'static [Property], kept: &mut Map<String, Value>, at: &str, protected: &mut Protected) {
    for property in object {
        let path = join(at, property.name);
        if property.access == Access::WriteOnly {
            if let Some(value) = kept.remove(property.name) {
                protected.sent.insert(path.clone(), value);
            }
            protected.places.push(path);
            continue;
        }
        match (&property.kind, kept.get_mut(property.name)) {
            (Type::Object(object), Some(Value::Object(inner))) => split(object, inner, &path, protected),
            (Type::Map(entries), Some(Value::Object(map))) => {
                for (name, value) in map {
                    if let Value::Object(inner) = value {
                        split(entries.of, inner, &join(&path, name), protected);
                    }
                }
            }
            (Type::List(Type::Object(object)), Some(Value::Array(list))) => {
                let names = names_of(object, list);
                for (value, name) in list.iter_mut().zip(names) {
                    if let Value::Object(inner) = value {
                        split(object, inner, &format!("{path}[{name}]"), protected);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Gives what was kept of a resource by places of an older form, which named the objects of a list by their position,
/// the places of today. `body`: the resource as it was kept with it.
#[must_use]
pub fn with_places_of_today(
    object: &'static [Property],
    body: &Map<String, Value>,
    mut kept: Map<String, Value>,
) -> Map<String, Value> {
    let mut moved = Vec::new();
    places(object, body, "", "", &mut moved);
    for (old, new) in moved.into_iter().filter(|(old, new)| old != new) {
        if let Some(value) = kept.remove(&old) {
            kept.entry(new).or_insert(value);
        }
    }
    kept
}

/// Where there is, or could be, something write-only: in the older form, and in that of today.
fn places(
    object: &'static [Property],
    body: &Map<String, Value>,
    old: &str,
    new: &str,
    found: &mut Vec<(String, String)>,
) {
    for property in object {
        let (old, new) = (join(old, property.name), join(new, property.name));
        match (&property.kind, body.get(property.name)) {
            _ if property.access == Access::WriteOnly => found.push((old, new)),
            (Type::Object(object), Some(Value::Object(inner))) => places(object, inner, &old, &new, found),
            (Type::Map(entries), Some(Value::Object(map))) => {
                for (name, value) in map {
                    let Value::Object(inner) = value else { continue };
                    places(entries.of, inner, &join(&old, name), &join(&new, name), found);
                }
            }
            (Type::List(Type::Object(object)), Some(Value::Array(list))) => {
                for (place, (value, name)) in list.iter().zip(names_of(object, list)).enumerate() {
                    let Value::Object(inner) = value else { continue };
                    places(object, inner, &format!("{old}[{place}]"), &format!("{new}[{name}]"), found);
                }
            }
            _ => {}
        }
    }
}

/// What the objects of a list are called: by their identity, and which one of that it is; or by their place.
fn names_of(object: &'static [Property], list: &[Value]) -> Vec<String> {
    let identity = object.iter().find(|property| property.identity).map(|property| property.name);
    let mut seen: HashMap<String, usize> = HashMap::new();
    let name = |(place, value): (usize, &Value)| match identity.and_then(|name| value.get(name)?.as_str()) {
        Some(text) => {
            let text = text.to_lowercase();
            let number = *seen.entry(text.clone()).and_modify(|seen| *seen += 1).or_default();
            format!("{}#{number}", Value::from(text))
        }
        None => place.to_string(),
    };
    list.iter().enumerate().map(name).collect()
}

/// As a schema of OpenAPI 3.1 (JSON Schema).
pub fn open_api(object: &'static [Property]) -> Value {
    open_api_of(object, Extent::Whole)
}

/// The same of a part of an object (PATCH).
pub fn open_api_part(object: &'static [Property]) -> Value {
    open_api_of(object, Extent::Part)
}

fn open_api_of(object: &'static [Property], extent: Extent) -> Value {
    let inner = |property: &Property| if extent == Extent::Part { Extent::of(property) } else { extent };
    let describe = |property: &Property| (property.name.to_owned(), open_api_property(property, inner(property)));
    let properties: Map<_, _> = object.iter().map(describe).collect();
    let required = object.iter().filter(|property| property.required && extent == Extent::Whole);
    let required: Vec<_> = required.map(|property| property.name).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

fn open_api_property(property: &Property, extent: Extent) -> Value {
    let mut schema = open_api_type(&property.kind, extent);
    match property.access {
        Access::ReadOnly => {
            schema["readOnly"] = true.into();
            if let Some(kind) = schema.get("type").cloned() {
                schema["type"] = json!([kind, "null"]);
            }
        }
        Access::WriteOnly => schema["writeOnly"] = true.into(),
        Access::ReadWrite => {}
    }
    if let Some(default) = property.default.filter(|_| extent == Extent::Whole) {
        schema["default"] = default.into();
    }
    schema
}

fn open_api_type(kind: &Type, extent: Extent) -> Value {
    match kind {
        Type::Text => json!({"type": "string", "maxLength": TEXT}),
        Type::Checked(_) => json!({"type": "string"}),
        Type::Shaped(_, pattern) => json!({"type": "string", "pattern": pattern}),
        // Without `enum`: any case is taken.
        Type::Words(words) => json!({"type": "string", "x-ms-enum": {"values": words}}),
        Type::Bool => json!({"type": "boolean"}),
        Type::Count => json!({"type": "integer", "format": "int32", "minimum": 0}),
        Type::Number(least, most) => {
            json!({"type": "integer", "format": "int32", "minimum": least, "maximum": most})
        }
        Type::Instant => json!({"type": "string", "format": "date-time"}),
        Type::Texts => {
            json!({"type": "object", "additionalProperties": {"type": "string", "maxLength": TEXT}, "maxProperties": ENTRIES})
        }
        Type::Settings => {
            json!({"type": "object", "additionalProperties": {"type": ["string", "null"]}, "maxProperties": ENTRIES,
                "propertyNames": {"minLength": 1, "maxLength": SETTING_NAME}})
        }
        Type::Tags => {
            json!({"type": "object", "additionalProperties": {"type": "string", "maxLength": TAG_VALUE}, "maxProperties": TAGS,
                "propertyNames": {"minLength": 1, "maxLength": TAG_NAME}})
        }
        Type::List(kind) => json!({"type": "array", "items": open_api_type(kind, Extent::Whole), "maxItems": ENTRIES}),
        Type::Json => json!({"type": "object"}),
        Type::Object(object) => open_api_of(object, extent),
        Type::Map(entries) => {
            let mut entry = open_api_of(entries.of, extent);
            entry["type"] = json!(["object", "null"]);
            json!({"type": "object", "additionalProperties": entry, "maxProperties": entries.most})
        }
    }
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// A name of a client's, as it may be in a message.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: &[Property] = &[
        Property::new("enabled", Type::Bool).required(),
        Property::new("secret", Type::Texts).write_only(),
        Property::read_only("state", Type::Text),
    ];
    const OBJECT: &[Property] = &[
        Property::new("mode", Type::Words(&["On", "Off"])).or("Off"),
        Property::new("inner", Type::Object(INNER)).since("2025-01-01"),
        Property::new("list", Type::List(&Type::Object(INNER))),
        Property::new("count", Type::Count),
        Property::read_only("seen", Type::Instant),
    ];

    fn map(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { unreachable!("tests give objects") };
        map
    }

    #[test]
    fn all_faults_at_once_with_their_places() {
        let raw = map(json!({
            "mode": "sideways", "inner": {"enabled": 1, "x": 2}, "list": [{"enabled": true}, {}, 7], "count": -1, "new": 1,
        }));
        let error = check(OBJECT, &raw).unwrap_err();
        let mut places: Vec<_> = error.details.iter().filter_map(|fault| fault.target.as_deref()).collect();
        places.sort_unstable();
        assert_eq!(places, ["count", "inner.enabled", "inner.x", "list[1].enabled", "list[2]", "mode", "new"]);
    }

    #[test]
    fn what_only_the_service_writes_is_ignored_and_words_have_one_case() {
        let raw =
            map(json!({"mode": "oN", "seen": "yesterday", "inner": {"enabled": true, "state": "x"}, "count": null}));
        assert_eq!(Value::Object(check(OBJECT, &raw).unwrap()), json!({"mode": "On", "inner": {"enabled": true}}));
        assert_eq!(Value::Object(check(OBJECT, &map(json!({}))).unwrap()), json!({"mode": "Off"}));
        assert_eq!(Value::Object(check_part(OBJECT, &map(json!({}))).unwrap()), json!({}));
    }

    #[test]
    fn protected_values_are_taken_out_and_never_shown() {
        let raw = map(json!({"list": [{"enabled": true, "secret": {"password": "p"}}]}));
        let mut kept = check(OBJECT, &raw).unwrap();
        assert!(!Value::Object(show(OBJECT, kept.clone(), "2026-01-01")).to_string().contains("password"));
        let protected = split_protected(OBJECT, &mut kept);
        assert_eq!(Value::Object(protected.sent), json!({"list[0].secret": {"password": "p"}}));
        assert!(!Value::Object(kept).to_string().contains("password"));
    }

    #[test]
    fn an_older_api_version_does_not_see_what_came_later() {
        let kept = map(json!({"inner": {"enabled": true}, "mode": "On"}));
        let shown = |version| Value::Object(show(OBJECT, kept.clone(), version));
        assert_eq!(shown("2024-01-01"), json!({"mode": "On", "seen": null}));
        assert_eq!(shown("2025-01-01"), json!({"mode": "On", "seen": null, "inner": {"enabled": true, "state": null}}));
    }
}
