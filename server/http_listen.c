/* Listening: names and ports, a socket file, a socket that somebody else made. */
#include "http_internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BACKLOG = 4096 };

int http_fail(char *message, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, size, format, arguments);
    va_end(arguments);
    return -1;
}

/* The system's words, beginning as a part of a sentence does. */
static const char *words(int error, char *text, size_t size) {
    snprintf(text, size, "%s", strerrordesc_np(error) ? strerrordesc_np(error) : "unknown error");
    *text = (char)tolower((unsigned char)*text);
    return text;
}

static void add_listener(http_server *server, int fd, bool tls) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    listener *made = &server->listeners[server->listener_count++];
    *made = (listener){.watched = WATCHED_LISTENER, .fd = fd, .tls = tls};
    if (getsockname(fd, (struct sockaddr *)&address, &length)) {
        return;
    }
    int port = 0;
    if (address.ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)&address;
        made->loopback = ntohl(four->sin_addr.s_addr) >> 24 == 127;
        port = ntohs(four->sin_port);
    } else if (address.ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&address;
        made->loopback = IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
        port = ntohs(six->sin6_port);
    }
    /* Inherited by what is accepted. What a slow reader does not take stays with its exchange, where it is
     * counted. */
    const int unsent = 128 * 1024;
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    made->tcp = address.ss_family == AF_INET || address.ss_family == AF_INET6;
    server->port = server->port ? server->port : port;
}

/* A listening socket, or -1 with errno. */
static int bind_address(const struct addrinfo *address, bool both) {
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    const int on = 1, only = !both;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ai_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
    }
    if (bind(fd, address->ai_addr, address->ai_addrlen) || listen(fd, BACKLOG)) {
        const int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static void set_port(struct addrinfo *address, int port) {
    if (address->ai_family == AF_INET) {
        ((struct sockaddr_in *)address->ai_addr)->sin_port = htons((uint16_t)port);
    } else if (address->ai_family == AF_INET6) {
        ((struct sockaddr_in6 *)address->ai_addr)->sin6_port = htons((uint16_t)port);
    }
}

/* All addresses of the host. One that this machine does not have is passed over while there is another; a
 * port that is taken on any of them is an error, unless the port was for us to choose. */
static int listen_tcp(http_server *server, char *message, size_t size) {
    const char *host = server->options.host;
    char text[128];
    if (server->options.port < 0 || server->options.port > 65535) {
        return http_fail(message, size, "port %d on %s: a port is 0 to 65535", server->options.port, host);
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    const int error = getaddrinfo(host, NULL, &hints, &found);
    if (error) {
        return http_fail(message, size, "host %s: %s", host, gai_strerror(error));
    }
    int failed = 0;
    const int before = server->listener_count;
    int port = server->options.port;
    for (struct addrinfo *address = found; address && server->listener_count < MAX_LISTENERS - 2;
         address = address->ai_next) {
        set_port(address, port);
        const int fd = bind_address(address, strcmp(host, "::") == 0);
        if (fd >= 0) {
            add_listener(server, fd, server->certificate != NULL);
            port = port ? port : server->port;
        } else if (errno == EADDRINUSE && server->options.port == 0 && port) {
            continue;
        } else {
            failed = errno;
            if (failed == EADDRINUSE || failed == EACCES) {
                break;
            }
        }
    }
    freeaddrinfo(found);
    if (server->listener_count == before || failed == EADDRINUSE || failed == EACCES) {
        return http_fail(message, size, "port %d on %s: %s", server->options.port, host,
                         words(failed, text, sizeof text));
    }
    return 0;
}

/* 0 when nothing stands in the way at `path` any more, else an errno. A socket that nobody listens on is what
 * a server that was killed left behind. */
static int clear_path(const struct sockaddr_un *address) {
    struct stat status;
    if (lstat(address->sun_path, &status)) {
        return errno == ENOENT ? 0 : errno;
    }
    if (!S_ISSOCK(status.st_mode)) {
        return EEXIST;
    }
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0) {
        return errno;
    }
    const int error = connect(probe, (const struct sockaddr *)address, sizeof *address) ? errno : 0;
    close(probe);
    if (error != ECONNREFUSED) {
        return error == 0 || error == EAGAIN ? EADDRINUSE : error;
    }
    return unlink(address->sun_path) && errno != ENOENT ? errno : 0;
}

static int listen_unix(http_server *server, char *message, size_t size) {
    const char *path = server->options.unix_path;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat status;
    char text[128];
    if (strlen(path) >= sizeof address.sun_path || !*path) {
        return http_fail(message, size, "socket %s: a path has 1 to %zu bytes", path,
                         sizeof address.sun_path - 1);
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int error = clear_path(&address);
    const int fd = error ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Linux makes the file with the socket's own mode, so that it is never open to others, not even at first.
     */
    if (!error && (fd < 0 || fchmod(fd, 0660) || bind(fd, (struct sockaddr *)&address, sizeof address))) {
        error = errno;
    } else if (!error) {
        server->socket_made = lstat(path, &status) == 0;
        server->socket_device = status.st_dev;
        server->socket_inode = status.st_ino;
        if (chmod(path, 0660) || listen(fd, BACKLOG)) { /* what the umask took away */
            error = errno;
        }
    }
    if (error) {
        if (fd >= 0) {
            close(fd);
        }
        return http_fail(message, size, "socket %s: %s", path, words(error, text, sizeof text));
    }
    add_listener(server, fd, false);
    return 0;
}

int http_listen(http_server *server, char *message, size_t size) {
    const http_options *options = &server->options;
    if (options->host && listen_tcp(server, message, size)) {
        return -1;
    }
    if (options->unix_path && listen_unix(server, message, size)) {
        return -1;
    }
    if (options->inherited_socket) {
        const int fd = options->inherited_socket;
        int listening = 0;
        socklen_t length = sizeof listening;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) || !listening) {
            return http_fail(message, size, "descriptor %d: it is no listening socket", fd);
        }
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        add_listener(server, fd, server->certificate != NULL);
        listener *made = &server->listeners[server->listener_count - 1];
        made->tls = made->tls && made->tcp;
    }
    if (!server->listener_count) {
        return http_fail(message, size, "there is nothing to listen on: no host, no socket");
    }
    return 0;
}

void http_listen_close(http_server *server) {
    struct stat status;
    for (int i = 0; i < server->listener_count; i++) {
        if (server->listeners[i].fd >= 0) {
            close(server->listeners[i].fd);
            server->listeners[i].fd = -1;
        }
    }
    /* Only the file that is ours: another server may have put its own there since. */
    if (server->socket_made && lstat(server->options.unix_path, &status) == 0 &&
        status.st_dev == server->socket_device && status.st_ino == server->socket_inode) {
        unlink(server->options.unix_path);
    }
    server->socket_made = false;
}
