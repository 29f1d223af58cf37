# frozen_string_literal: true

require 'digest'
require 'logger'
require 'rack/attack'
require 'socket'

module Rack
  class Attack
    # Larder's rate limits for Rack::Attack: a cache store for the throttles of Rack::Attack itself, and throttles
    # that Larder decides.
    #
    # The server decides and counts in one step, so each throttle of a request is one request to the server. A
    # connection serves one request at a time. It is closed after any error, so that a late reply never answers
    # another request.
    module Larder
      class Error < Rack::Attack::Error; end
      # The server did not answer, or not in time.
      class Away < Error; end
      # The server has no rate limits.
      class NotLarder < Error; end

      ALGORITHMS = { fixed: 'I', sliding: 'W', gcra: 'G' }.freeze
      KEY_BYTES = 250
      # The longest relative TTL, in seconds. As in memcached, the server reads a larger number as Unix time.
      LONGEST_TTL = 30 * 86_400
      # The count that a store with `fail: :closed` returns while the server is away. It exceeds every limit. As the
      # value of a ban, it makes Fail2Ban and Allow2Ban refuse the request.
      REFUSED = (1 << 63) - 1
      NO_LIMITS = ['ERROR', 'CLIENT_ERROR invalid or duplicate flag'].freeze
      # The first words of the replies to meta commands. Anything else is an error, for example
      # "ERROR Too many open connections".
      REPLIES = %w[HD VA NS NF EN EX].freeze
      NETWORK_ERRORS = [SystemCallError, SocketError, IOError].freeze

      # The server's answer: whether the request passed, the units left, the milliseconds until the same request
      # could pass (0: it passed, -1: never), and the seconds until the limiter is as new.
      Answer = Struct.new(:allowed, :remaining, :wait_ms, :reset_s)

      # Answers 429 with the right Retry-After. Rack::Attack's own responder assumes windows that follow the clock.
      RESPONDER = lambda do |request|
        data = request.env['rack.attack.match_data']
        seconds = data.fetch(:retry_after) { data[:period] - (data[:epoch_time] % data[:period]) }
        headers = { 'content-type' => 'text/plain' }
        headers['retry-after'] = seconds.to_s if seconds
        [429, headers, ["Retry later\n"]]
      end

      # Defines a throttle that Larder decides. The parameters are those of Rack::Attack.throttle,
      # whose throttles count in Larder but decide in Rack::Attack.
      def self.throttle(name, limit:, period:, algorithm: :sliding, burst: nil, store: nil, &block)
        options = { limit: limit, period: period, algorithm: algorithm, burst: burst, store: store }
        Rack::Attack.configuration.throttles[name] = Throttle.new(name, options, &block)
      end

      # Matches the requests that Larder refuses.
      class Throttle < Rack::Attack::Throttle
        def initialize(name, options, &block)
          super
          @algorithm = options.fetch(:algorithm)
          raise ArgumentError, "algorithm is one of #{ALGORITHMS.keys}, not #{@algorithm}" unless ALGORITHMS[@algorithm]
          raise ArgumentError, 'only :gcra has a burst' if options[:burst] && @algorithm != :gcra

          @burst = options[:burst]
          @store = options[:store]
        end

        def matched_by?(request)
          discriminator = discriminator_for(request)
          return false unless discriminator

          limit = limit_for(request).to_i
          period = period_for(request).to_i
          answer = store.take("#{cache.prefix}:#{name}:#{discriminator}", @algorithm, limit, period, burst: @burst)
          data = data_of(answer, limit).merge(discriminator: discriminator, period: period, limit: limit)
          annotate_request_with_throttle_data(request, data)
          return false if answer.allowed

          annotate_request_with_matched_data(request, data)
          Rack::Attack.instrument(request)
          true
        end

        private

        def store
          store = @store || cache.store
          return store if store.is_a?(Store)

          raise MisconfiguredStoreError, "#{name} needs a Rack::Attack::Larder::Store, not #{store.class}"
        end

        # As in Rack::Attack, the count of a refused request is larger than the limit.
        def data_of(answer, limit)
          {
            count: (@burst || limit) - answer.remaining + (answer.allowed ? 0 : 1),
            epoch_time: Time.now.to_i,
            remaining: answer.remaining,
            retry_after: answer.wait_ms.negative? ? nil : (answer.wait_ms / 1000.0).ceil,
            reset_after: answer.reset_s
          }
        end
      end

      # Connections to one server. Each is used by one thread at a time, and only by the process that made it.
      class Client
        def initialize(address, connect_timeout:, timeout:, backoff:, pool_size:)
          @address = address
          @connect_timeout = connect_timeout
          @timeout = timeout
          @backoff = backoff
          @pool_size = pool_size
          @retry_at = 0
          @lock = Mutex.new
          @pid = Process.pid
          @idle = []
        end

        # Returns the words of the reply's first line, and its value.
        def call(command, key, flags = nil, value = nil)
          raise Away, 'waiting before the next attempt' if now < @retry_at

          # The length of the value comes between the key and the flags. The key's form is one of the flags.
          token, *form = self.class.wire_key(key).split
          head = [command, token, value&.bytesize, *form, flags].compact.join(' ')
          line, text = exchange("#{head}\r\n#{value && "#{value}\r\n"}")
          raise NotLarder, 'this server has no rate limits; it is not Larder, or too old' if NO_LIMITS.include?(line)
          raise Error, line if line.start_with?('CLIENT_ERROR')

          words = line.split
          raise Away, "it answered #{line.inspect}" unless REPLIES.include?(words[0])

          [words, text]
        end

        # Returns the key in a form that the protocol can carry, with the flag of that form.
        def self.wire_key(key)
          raw = key.b
          return raw if raw.bytesize.between?(1, KEY_BYTES) && !raw.match?(/[\x00-\x20\x7f]/n)

          encoded = [raw].pack('m0')
          raw.empty? || encoded.bytesize > KEY_BYTES ? "sha256:#{::Digest::SHA256.hexdigest(raw)}" : "#{encoded} b"
        end

        private

        def exchange(request)
          connection = kept = nil
          connection = idle || connect
          deadline = now + @timeout
          send_all(connection, request.b, deadline)
          reply = receive(connection, deadline)
          kept = keep(connection)
          reply
        rescue *NETWORK_ERRORS => e
          @retry_at = now + @backoff
          raise Away, "#{e.class}: #{e.message}"
        ensure
          # Also runs if Timeout.timeout or Thread#kill interrupts the exchange.
          connection&.close unless kept
        end

        # Returns an idle connection, or nil. No reply is due on an idle connection, so a readable
        # one was closed by the server.
        def idle
          while (connection = @lock.synchronize { after_fork.pop })
            return connection if connection.recv_nonblock(1, ::Socket::MSG_PEEK, exception: false) == :wait_readable

            connection.close
          end
        rescue SystemCallError, IOError
          connection.close
          retry
        end

        def keep(connection)
          @lock.synchronize { @idle.push(connection) if after_fork.size < @pool_size }
        end

        def after_fork
          return @idle if @pid == Process.pid

          @pid = Process.pid
          @idle = []
        end

        def connect
          return connect_to_path if @address.start_with?('/')

          host, _, port = @address.rpartition(':')
          connection = ::Socket.tcp(host.delete('[]'), port, connect_timeout: @connect_timeout)
          connection.setsockopt(::Socket::IPPROTO_TCP, ::Socket::TCP_NODELAY, 1)
          connection
        end

        # Never waits. A Unix socket connects at once, or fails because the server's accept queue is full.
        def connect_to_path
          connection = ::Socket.new(:UNIX, :STREAM)
          connection.connect_nonblock(::Socket.sockaddr_un(@address))
          connection
        rescue SystemCallError
          connection&.close
          raise
        end

        def send_all(connection, data, deadline)
          until data.empty?
            sent = connection.write_nonblock(data, exception: false)
            if sent == :wait_writable
              in_time(connection.wait_writable([deadline - now, 0].max))
            else
              data = data.byteslice(sent..)
            end
          end
        end

        def receive(connection, deadline)
          reply = +''.b
          loop do
            line, rest = reply.split("\r\n", 2)
            if rest
              size = line.start_with?('VA ') ? Integer(line.split[1], 10) + 2 : 0
              return [line, rest.byteslice(0, size).delete_suffix("\r\n")] if rest.bytesize >= size
            end
            case (more = connection.read_nonblock(4096, exception: false))
            when :wait_readable then in_time(connection.wait_readable([deadline - now, 0].max))
            when nil then raise IOError, 'the server closed the connection'
            else reply << more
            end
          end
        end

        def in_time(ready)
          raise IOError, "no answer in #{@timeout} s" unless ready
        end

        def now
          Process.clock_gettime(Process::CLOCK_MONOTONIC)
        end
      end

      # A cache store for Rack::Attack. `fail` says what happens while the server is away: :open lets requests
      # pass, :closed throttles them. Times are in seconds.
      class Store
        def initialize(address = '127.0.0.1:11211', fail: :open, connect_timeout: 0.1, timeout: 0.1, backoff: 0.5,
                       pool_size: 32, logger: ::Logger.new($stderr))
          raise ArgumentError, "fail is :open or :closed, not #{fail.inspect}" unless %i[open closed].include?(fail)

          @open = fail == :open
          @logger = logger
          @warn_at = 0
          @client = Client.new(address, connect_timeout: connect_timeout, timeout: timeout, backoff: backoff,
                                        pool_size: pool_size)
        end

        # Takes `cost` units of a limit, all or none, in one request. A cost of 0 only reads the state.
        def take(key, algorithm, limit, period, burst: nil, cost: 1)
          # The server would take a period of 0 as one that never ends.
          raise ArgumentError, "the period is at least a second, not #{period}" unless period.positive?

          flags = "M#{ALGORITHMS.fetch(algorithm)} B#{limit} N#{period}#{burst && " G#{burst}"} D#{cost} r t w"
          words, = @client.call('ma', key, flags)
          told = words.drop(1).to_h { |word| [word[0], Integer(word[1..], 10)] }
          Answer.new(words[0] == 'HD', told['r'], told['w'], told['t'])
        rescue Away => e
          away(e)
          @open ? Answer.new(true, burst || limit, 0, 0) : Answer.new(false, 0, -1, 0)
        end

        # Counts for the throttles of Rack::Attack itself, in one request.
        def increment(key, amount = 1, options = {})
          ttl = expiry(options)
          Integer(@client.call('ma', key, "#{"N#{ttl} " if ttl}J#{amount} D#{amount} v")[1], 10)
        rescue Away => e
          away(e)
          # A count that the server did not make must not lead to a ban, which would last longer than the error.
          @open || counts_towards_a_ban?(key) ? 0 : REFUSED
        end

        # Returns a value while the server is away and `fail` is :closed, because Fail2Ban and Allow2Ban refuse a
        # request if the ban that they read has a value.
        def read(key, _options = {})
          words, value = @client.call('mg', key, 'v')
          value if words[0] == 'VA'
        rescue Away => e
          away(e)
          @open ? nil : REFUSED.to_s
        end

        def write(key, value, options = {})
          ttl = expiry(options)
          text = value.to_s.b
          answered { @client.call('ms', key, ("T#{ttl}" if ttl), text) }
        end

        def delete(key, _options = {})
          answered { @client.call('md', key) }
        end

        private

        def expiry(options)
          seconds = options[:expires_in]&.ceil
          seconds && seconds > LONGEST_TTL ? Time.now.to_i + seconds : seconds
        end

        # Returns whether Fail2Ban or Allow2Ban compares the counter with `maxretry`.
        def counts_towards_a_ban?(key)
          key.b.delete_prefix("#{Rack::Attack.cache.prefix}:".b).match?(/\A\d+:(fail|allow)2ban:count:/)
        end

        def answered
          yield
        rescue Away => e
          away(e)
          nil
        end

        # Warns at most once a second.
        def away(error)
          now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          return if now < @warn_at

          @warn_at = now + 1
          @logger&.warn("Larder is away, requests #{@open ? 'pass' : 'are refused'}: #{error.message}")
        end
      end
    end
  end
end
