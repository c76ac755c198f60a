//! Faults that are known by their words (docs/features.md B3): cause and remedy, a line each.

/// Words of an event, a state or a log that stand in it together; and what they mean.
const KNOWN: &[(&[&str], &str)] = &[
    (&["exceeded quota"], "raise the ResourceQuota of the namespace, or use another: --namespace NAME"),
    (
        &["failed calling webhook"],
        "an admission webhook of the cluster does not answer: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
    ),
    (
        &["admission webhook"],
        "an admission webhook of the cluster refuses the pods, and says why: what it wants is its owner's to say",
    ),
    (&["InvalidImageName"], "that is not a name of an image: towline connect --image REPOSITORY:TAG"),
    (&["node(s) were unschedulable"], "every node is cordoned: kubectl uncordon NODE"),
    (
        &["ErrImageNeverPull"],
        "the node does not have the agents' image and may not pull it: load it there, or towline connect --image",
    ),
    (
        &["ImagePullBackOff"],
        "the agents' image cannot be pulled: check its name and the nodes' way to the registry, or towline connect --image",
    ),
    (
        &["ErrImagePull"],
        "the agents' image cannot be pulled: check its name and the nodes' way to the registry, or towline connect --image",
    ),
    (&["Insufficient cpu"], "no node has the CPU that the agents ask for: add a node, or free some"),
    (&["Insufficient memory"], "no node has the memory that the agents ask for: add a node, or free some"),
    (
        &["untolerated taint"],
        "every node has a taint that the agents do not tolerate: remove it from one, or install by helm with tolerations",
    ),
    (
        &["violates PodSecurity"],
        "the namespace's pod security standard refuses the pods: label it pod-security.kubernetes.io/enforce=restricted",
    ),
    (
        &["unable to validate against any security context constraint"],
        "OpenShift's constraints refuse the pods' user: oc adm policy add-scc-to-user nonroot-v2 -z clusterconnect-agent -z controller-manager",
    ),
    (&["OOMKilled"], "a pod needs more memory than its limit: install by helm with higher resources.limits"),
    (
        &["InvalidProof"],
        "the onboarding key is not that of the resource: connect again with the same name and group; to a resource that another run made, towline connect --existing",
    ),
    (
        &["AlreadyConnected"],
        "this cluster is connected as another resource, which the message names: delete one of the two",
    ),
    (
        &["ResourceDeleted"],
        "the resource was deleted: towline connect makes it again, towline delete removes the agents",
    ),
    (
        &["CertificateExpired"],
        "the certificate ended while the gateway was away: towline connect again with the same name and group",
    ),
    (
        &["UnknownIssuer"],
        "something between cluster and gateway shows a certificate of its own: towline connect --proxy-cert FILE with its authority",
    ),
    (
        &["wants credentials (407)"],
        "the proxy wants a user name and a password: towline connect --proxy-https http://user:password@host:port",
    ),
    (
        &["wants other credentials (407)"],
        "the proxy refuses the user name or the password: towline connect --proxy-https http://user:password@host:port",
    ),
    (
        &[PROXY],
        "the proxy is not reached: check its address, towline connect --proxy-https; or go without: --disable-proxy",
    ),
    (
        &["proxy ", " refused: "],
        "the proxy does not let the agents to the gateway: have it allow CONNECT to the gateway's host and port",
    ),
    (&[THROUGH_AGENT], "it goes out through clusterconnect-agent: see to the pods of that first"),
    (
        &["CrashLoopBackOff"],
        "the program ends again and again, its log says why: kubectl -n NAMESPACE logs POD --previous",
    ),
    (
        &["Name or service not known"],
        "the gateway's name does not resolve in the cluster: its DNS, or towline connect --host-alias ADDRESS=NAME",
    ),
    (
        &["failed to lookup address"],
        "the gateway's name does not resolve in the cluster: its DNS, or towline connect --host-alias ADDRESS=NAME",
    ),
    (
        &["Connection refused"],
        "nothing listens at the gateway's address, or a firewall says so: check address and port",
    ),
    (&["not yet valid"], "the clock of a node is wrong: set it by NTP"),
];

/// A proxy on the way that does not answer. What else the text says of a connection is about the proxy then.
const PROXY: &str = "cannot connect to proxy";
/// An agent that reaches the gateway through another one.
const THROUGH_AGENT: &str = "clusterconnect-agent.";
/// Words that are about the gateway unless one of these is in the text, too: then they are about that.
const NEARER: &[(&str, &[&str])] = &[("Connection refused", &[PROXY, THROUGH_AGENT])];

/// What is known of a text about one fault.
pub fn remedies(text: &str) -> Vec<String> {
    let is_farther = |words: &[&str]| {
        let nearer = NEARER.iter().find(|(general, _)| words.contains(general));
        nearer.is_some_and(|(_, nearer)| nearer.iter().any(|words| text.contains(words)))
    };
    let mut found: Vec<String> = Vec::new();
    for (words, remedy) in KNOWN {
        if words.iter().all(|word| text.contains(word)) && !is_farther(words) && !found.iter().any(|one| one == remedy)
        {
            found.push((*remedy).to_owned());
        }
    }
    found
}

/// What is known of several faults, each told in a text of its own.
pub fn remedies_of(texts: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for remedy in texts.iter().flat_map(|text| remedies(text)) {
        if !found.contains(&remedy) {
            found.push(remedy);
        }
    }
    found
}

/// Settings of an agent that remedies of its own check name, and the option of `towline connect` that writes them.
const OPTIONS: &[(&str, &str)] = &[
    ("gateway.addresses", "--host-alias ADDRESS=NAME"),
    ("gateway.extra_ca_file", "--proxy-cert FILE"),
    ("proxy.ca_file", "--proxy-cert FILE"),
    ("proxy.no_proxy", "--proxy-skip-range LIST"),
    ("proxy.url", "--proxy-https URL"),
    ("proxy.password_file", "--proxy-https http://user:password@host:port"),
];

/// A remedy of `towline-agent check` for somebody who sets agents up by `towline connect`.
pub fn as_options(remedy: &str) -> String {
    let mut options: Vec<&str> = Vec::new();
    for (_, option) in OPTIONS.iter().filter(|(setting, _)| remedy.contains(setting)) {
        if !options.contains(option) {
            options.push(option);
        }
    }
    if options.is_empty() { remedy.to_owned() } else { format!("{remedy} (towline connect {})", options.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_known_words_have_a_remedy_each_once() {
        assert_eq!(remedies("a; ImagePullBackOff; ErrImagePull: x").len(), 1);
        assert!(remedies("all is well").is_empty());
    }
    #[test]
    fn b3_a_remedy_is_for_the_hop_that_failed_and_no_number_is_taken_for_a_code() {
        let one = |text: &str| {
            let found = remedies(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            found[0].clone()
        };
        assert!(
            one("h2: cannot connect to 10.0.0.1:443: Connection refused (os error 111)").contains("gateway's address")
        );
        assert!(
            one("h2: cannot connect to proxy 10.0.0.1:3128: Connection refused").contains("the proxy is not reached")
        );
        assert!(one("proxy 10.0.0.1:3128 refused: 403").contains("allow CONNECT"));
        assert!(one("proxy p:1 wants credentials (407)").contains("wants a user name"));
        assert!(one("proxy p:1 wants other credentials (407)").contains("refuses the user name"));
        assert!(
            one("h2: cannot connect to clusterconnect-agent.towline.svc:8079: Connection refused").contains("first")
        );
        for number in ["pod web-8407f is ready", "2026-11-28T17:24:07.407Z Pulled web: in 407ms"] {
            assert!(remedies(number).is_empty(), "{number}");
        }
        let texts = ["a: ErrImagePull", "b: ErrImagePull", "c: OOMKilled"].map(str::to_owned);
        assert_eq!(remedies_of(&texts).len(), 2);
    }

    #[test]
    fn b3_settings_of_an_agent_are_told_as_options_of_connect() {
        assert_eq!(as_options("allow it"), "allow it");
        let told = as_options("correct proxy.url, or name the gateway in proxy.no_proxy");
        assert!(told.ends_with("(towline connect --proxy-skip-range LIST, --proxy-https URL)"), "{told}");
    }
}
