//! Names of images, as they are typed.

/// Repository, tag and digest; one of the last two is empty, or both.
pub fn split_image(name: &str) -> (String, String, String) {
    if let Some((repository, digest)) = name.split_once('@') {
        return (repository.to_owned(), String::new(), digest.to_owned());
    }
    let last = name.rfind('/').map_or(0, |at| at + 1);
    match name[last..].find(':') {
        Some(at) => (name[..last + at].to_owned(), name[last + at + 1..].to_owned(), String::new()),
        None => (name.to_owned(), String::new(), String::new()),
    }
}
